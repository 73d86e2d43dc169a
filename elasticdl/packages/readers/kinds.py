"""Declares the readers of this package: the data of each, and the function that makes it."""

import os
import re

from elasticdl.data.base import DataReader
from elasticdl.data.kinds import DataSource, FileFormat
from elasticdl.data.params import Params
from elasticdl.data.remote import is_url
from elasticdl.errors import ConfigError
from elasticdl.packages.readers.images import ImageFolderReader, is_image_folder
from elasticdl.packages.readers.libsvm import LibsvmReader
from elasticdl.packages.readers.maxcompute import MaxComputeReader, is_maxcompute
from elasticdl.packages.readers.sql import SqlReader, is_database


def _open_images(place: str, params: Params) -> DataReader:
    if is_url(place):
        raise ConfigError(
            f"{place}: folders of images are read from the file system alone; mount it, or make "
            "records of the images: elasticdl data convert FOLDER images.recordio --as example"
        )
    return ImageFolderReader(os.path.abspath(os.path.expanduser(place)))


LIBSVM = FileFormat(
    re.compile(r"\.(libsvm|svm|svmlight)$"), lambda paths, params: LibsvmReader(paths)
)
SQL = DataSource(is_database, SqlReader.from_params)
MAXCOMPUTE = DataSource(is_maxcompute, MaxComputeReader.from_params)
IMAGES = DataSource(is_image_folder, _open_images, format="images")
