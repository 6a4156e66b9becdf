"""The book's figures: house style and plots, and those of the EEG chapters."""
