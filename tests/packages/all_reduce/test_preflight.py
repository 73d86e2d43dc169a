"""A strategy of all-reduce is compared with the tables of the model before a job starts."""

import pytest

from elasticdl.cli.preflight import check
from elasticdl.errors import ModelError
from tests.unit.cli import test_preflight as core

place = core.place


def test_a_strategy_that_does_not_suit_the_tables_is_refused_at_once(place):
    model = place / "zoo" / "mnist" / "model.py"
    with_table = "from elasticdl.layers import *\ndef forward(): Embedding(1)\n"
    model.write_text(core.MODEL + with_table)
    with pytest.raises(ModelError, match=r"has embedding tables.*HybridStrategy"):
        check(core.config(distribution_strategy="AllreduceStrategy"))
    check(core.config(distribution_strategy="HybridStrategy"))
    model.write_text(core.MODEL + "import numpy\ndef forward(): return numpy.zeros(1)\n")
    with pytest.raises(ModelError, match=r"has no embedding tables.*AllreduceStrategy"):
        check(core.config(distribution_strategy="HybridStrategy"))
    check(core.config(distribution_strategy="AllreduceStrategy"))
