"""The version, which both distributions share and which nothing needs to import anything else for."""

__version__ = "0.1.0"
