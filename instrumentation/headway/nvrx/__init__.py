"""Headway."""
