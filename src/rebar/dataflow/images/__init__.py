"""Labelled images: data sets, PNG, and the stages Decode, Augment and Batch of a pipeline."""

from rebar.dataflow.images.augment import Augment
from rebar.dataflow.images.batches import BatchImages, ImageBatches, held_out
from rebar.dataflow.images.dataset import ArrayImages, FolderImages, RawImage, open_images, split
from rebar.dataflow.images.decode import DecodeImages, Picture
from rebar.dataflow.images.png import read_png
from rebar.dataflow.images.survey import ImageSurvey, survey_images

__all__ = [
    "ArrayImages",
    "Augment",
    "BatchImages",
    "DecodeImages",
    "FolderImages",
    "ImageBatches",
    "ImageSurvey",
    "Picture",
    "RawImage",
    "held_out",
    "open_images",
    "read_png",
    "split",
    "survey_images",
]
