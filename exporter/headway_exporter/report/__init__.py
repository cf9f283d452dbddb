"""`headway postmortem`: what became of a run, from its state folder alone.

    load (reads files) -> parse (objects that can be trusted) -> merge (one incident, not one per pod) -> model.Run
    model.Run -> analysis (pure) -> document -> html | markdown | json

Whatever is damaged, missing or of a newer version is named in the report and never ends it.
"""
