"""The files of checkpoints and exports: their places, and how each appears as a whole."""
