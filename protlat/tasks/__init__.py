"""Labelled sets: what a task is, how its files are read, what is checked before anything is trained on them."""
