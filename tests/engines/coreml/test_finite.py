"""Infinity and NaN: a result that has any is a lost worker, and no cache keeps them."""

import pytest

from streamd.engines.coreml.golden import against_golden, golden_vectors
from streamd.engines.coreml.runtime.core_ml_engine import WorkerLimits
from streamd.errors import EngineError
from tests.support.coreml_runs import core_ml, faulty

pytestmark = [pytest.mark.coreml, pytest.mark.timeout(400)]


@pytest.mark.parametrize(
    ("form", "function"), [("state", "ctx"), ("state", "step2"), ("mix", "align32")]
)
def test_a_result_that_is_no_number_is_a_lost_worker(built, tmp_path, form, function, caplog):
    with faulty(tmp_path / "faults") as faults, core_ml(built, tmp_path / "c", form) as engine:
        faults.add("nan", function=function)
        off = against_golden(engine, golden_vectors(built))
    assert max(off.logits, off.alignment) < 1e-5
    (warning,) = (
        record.message for record in caplog.records if "starting another" in record.message
    )
    assert "with infinity or NaN" in warning


def test_numbers_that_come_back_every_time_are_an_error(built, tmp_path):
    limits = WorkerLimits(start_s=300.0, answer_s=100.0, deaths=2)
    golden, folder = golden_vectors(built), tmp_path / "c"
    with faulty(tmp_path / "faults") as faults, core_ml(built, folder, limits=limits) as engine:
        faults.add("nan", function="step", once=False)
        with pytest.raises(EngineError, match="infinity or NaN; use --compute cpu"):
            against_golden(engine, golden)
