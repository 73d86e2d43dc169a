"""The files of checkpoints and exports: where they lie, and how they appear whole."""
