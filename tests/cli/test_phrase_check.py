"""``streamd vocabulary check``."""

from streamd.cli import main
from streamd.errors import ConfigError


def test_each_phrase_and_its_risk_are_told(tmp_path, capsys):
    path = tmp_path / "names.txt"
    path.write_text("# people\nAna Botín\nEd\nhouse\nDr. Nguyen-Smith:2\nJetStream:9\nJetStream\n")
    assert main(["vocabulary", "check", str(path), "-m", "tiny.en"]) == 0
    ana, ed, house, nguyen, heavy, twice, sum_of_all = capsys.readouterr().out.splitlines()
    assert ana == "Ana Botín  tokens: 3 (Ana| Bot|ín)"
    assert ed.endswith("RISKY: so short that other words sound like it")
    assert house.endswith("a common word, which it hears without help")
    assert "RISKY" not in nguyen
    assert heavy.endswith("so heavy that it is written where something like it was said")
    assert twice.endswith("listed twice: the greatest weight counts")
    assert sum_of_all == "6 phrases, 4 of them risky"


def test_a_file_that_is_missing_is_one_line(tmp_path, capsys):
    missing = str(tmp_path / "none")
    assert main(["vocabulary", "check", missing, "-m", "tiny.en"]) == ConfigError.exit_code
    assert "cannot read it" in capsys.readouterr().err
    assert main(["vocabulary", "chek", "x"]) == ConfigError.exit_code
    assert "vocabulary chek: no such command; did you mean check?" in capsys.readouterr().err
