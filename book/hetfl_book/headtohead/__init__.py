"""Head to head: every method on every federation, tuned alike, by the rules of the page ``headtohead``.

`federations` says what is compared on, `entries` what is compared and with which settings it is tried, `running` makes
the records that are missing, `ranking` reads tables and tests from them, and `sites` what single clients reached.
`guide` advises by them, `figures` draws, `cards` says of each method what it needs and
brought.
"""

VERSION = "1.0"
"""Of the rules."""
