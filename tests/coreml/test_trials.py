"""A unit that is wrong in one function is refused, whatever the others do."""

import pytest

from streamd.engines.coreml.golden import against_golden, golden_vectors
from streamd.engines.coreml.package import FORMS, functions
from tests.support.coreml_runs import core_ml, faulty

pytestmark = [pytest.mark.coreml, pytest.mark.timeout(600)]


@pytest.mark.parametrize("form", FORMS)
def test_a_lie_in_any_one_function_is_seen(form, built, tmp_path, table):
    golden = golden_vectors(built)
    lied = [function for function in built.functions if form in function.forms]
    assert len(lied) == len({(function.package, function.name) for function in lied})
    with faulty(tmp_path / "faults") as faults, core_ml(built, tmp_path / "c", form) as engine:
        assert against_golden(engine, golden).acceptable
        for function in lied:
            package = function.package.removesuffix(".mlpackage")
            faults.add("lie", function=function.name, package=package, whole=True, once=False)
            off = against_golden(engine, golden)
            faults.clear()
            cells = (f"{package} {function.name}", f"logits {off.logits:.2g}")
            table(
                "3. how far a unit seems that is wrong by a tenth in one function; 0.02 is refused",
                *(form, *cells, f"alignment {off.alignment:.2g}", off.where),
            )
            assert not off.acceptable, function.name


def test_each_function_runs_on_real_speech(built, tmp_path):
    golden = golden_vectors(built)
    for window in golden:
        assert 0.1 < window.mel.std() < 1, "it is no silence"
    for form in FORMS:
        with faulty(tmp_path / form) as faults, core_ml(built, tmp_path / "c", form) as engine:
            against_golden(engine, golden)
        ran = {name for what, _, name in faults.done() if what == "predict"}
        assert ran == {
            function.name for function in functions(built.meta) if form in function.forms
        }
