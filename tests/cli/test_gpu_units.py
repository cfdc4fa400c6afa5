"""`colocate gpu units`: a table that costs and one that translates."""

import pytest

from colocate.cli.main import main


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["gpu", "units", *words])
    assert not ended.value.code
    return capsys.readouterr().out


def test_units_are_costed_and_amounts_translated(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split() for line in printed(capsys, "--gpus", "8x80Gi", "4Gi", "4200Mi").splitlines()]
    assert ["8x80Gi", "256Mi", "2560", "0.9", "what", "colocate", "has"] in lines
    assert [
        "8x80Gi",
        "64Mi",
        "10240",
        "13.6",
        "not",
        "offered",
        "to",
        "kubelets",
        "from",
        "1.36",
        "on",
    ] in lines
    assert ["4Gi", "4096", "16"] in lines
    assert ["4200Mi", "4200", "17"] in lines


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gpus", "80Gi"), "--gpus: '80Gi' names no GPUs"),
        (("--gpus", "0x80Gi"), "names no GPUs"),
        (("--to", "100"), "--to: '100' is no amount of GPU memory; write it in whole Mi or Gi"),
        (("many",), "AMOUNT: 'many' is no amount"),
    ],
)
def test_nonsense_is_refused(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    with pytest.raises(SystemExit):
        main(["gpu", "units", *words])
    assert said in capsys.readouterr().err
