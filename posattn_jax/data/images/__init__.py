"""Labelled images and clips: data sets, and the sources that a data set of one's own returns."""

from posattn_jax.data.images.image_set import GridImages, ImageRecord, ImageSet, Points, Split

__all__ = ["GridImages", "ImageRecord", "ImageSet", "Points", "Split"]
