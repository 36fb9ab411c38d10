"""File and TFDS data sets."""
