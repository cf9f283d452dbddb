"""The sidecar's port: who may ask, how long that may take, and what of a request is believed."""
