"""Measuring trained models: accuracy by length, statistics over seeds, tables, pictures, traces."""
