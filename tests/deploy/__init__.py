"""Checks of the chart and the image."""
