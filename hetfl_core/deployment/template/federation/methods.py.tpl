"""What is trained. Several methods run side by side, so that you see what federation is worth on your data."""

from hetfl_core.methods import FLIC, Local

METHODS = {
    "FLIC": FLIC(),
    "Local": Local(),  # each client alone: what the others must beat
}
