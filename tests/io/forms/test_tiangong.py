"""TianGong-ST's XML: pages and clicks, what is left out, and what is refused."""

import gzip
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import polars as pl
import pytest
from command_results import Posbias
from make_logs import draw_pages, flat, tiangong

Run = Callable[..., CompletedProcess[str]]
UNUSABLE = 2
FILE = "tiangong.xml"


@pytest.fixture
def xml() -> str:
    """Return the sessions of the made-up pages."""
    return tiangong(draw_pages())[FILE].decode()


@pytest.mark.parametrize("records_at_once", [7, 20_000])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.slow_after(1)
def test_the_log_is_its_flat_twin_however_it_is_cut_and_packed(
    *, posbias: Posbias, xml: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records_at_once: int, packed: bool
) -> None:
    monkeypatch.setattr("posbias.io.forms.tiangong._RECORDS_AT_ONCE", records_at_once)
    monkeypatch.setattr("posbias.io.forms.tiangong._PIECE", 1000 if records_at_once == 7 else 1 << 20)
    path = tmp_path / (f"{FILE}.gz" if packed else FILE)
    path.write_bytes(gzip.compress(xml.encode()) if packed else xml.encode())
    (tmp_path / "flat.csv").write_bytes(flat(draw_pages())["flat.csv"])
    found = posbias("fit", path, "--input-format", "tiangong", "--model", "ubm")
    expected = posbias("fit", tmp_path / "flat.csv", "--model", "ubm")
    assert found.propensities.equals(expected.propensities)
    account = found.manifest["rows"]["raw"]["tiangong"]
    assert account["used"] == {"pages": 240, "clicks": 366}
    assert account["lines"] == 240 + 366


ODD = {
    "a click on a rank that is not there": (
        ("<rank>1</rank>", "<rank>9</rank>"),
        "clicks without a document",
    ),
    "a click on a rank of 5,000 digits": (
        ("<rank>1</rank>", f"<rank>{'9' * 5000}</rank>"),
        "clicks without a document",
    ),
    "a rank of 5,000 digits": (
        ('<result rank="5">', f'<result rank="{"9" * 5000}">'),
        "pages whose list does not hold",
    ),
    "a rank that stands twice": (('<result rank="2">', '<result rank="1">'), "pages whose list does not hold"),
    "a rank that is left out": (('<result rank="5">', '<result rank="6">'), "pages whose list does not hold"),
    "a result without an id": (("<docid>sku-02</docid>", ""), "pages whose list does not hold"),
    "no query": (("<query_id>boots</query_id>", ""), ""),
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_odd_is_counted_and_left_out(posbias: Posbias, xml: str, tmp_path: Path, case: str) -> None:
    (before, after), said = ODD[case]
    (tmp_path / FILE).write_text(xml.replace(before, after, 1), encoding="utf-8")
    account = posbias("collect", tmp_path / FILE, "--input-format", "tiangong").manifest["rows"]["raw"]["tiangong"]
    not_used = account["not_used"]
    assert [why for why in not_used if said and why.startswith(said)] == ([] if not said else list(not_used)[:1])
    assert sum(account["used"].values()) + sum(not_used.values()) == account["lines"]
    if not said:  # the text of the query stands in for its id
        assert not_used == {}


WRONG: dict[str, tuple[Callable[[str], str], str]] = {
    "cut off": (lambda xml: xml[: xml.rindex("</results>")], "is no whole XML: no element found"),
    "no XML": (lambda xml: xml.replace("</results>", "</result>", 1), "line 34: is no whole XML: mismatched tag"),
    "a document type": (
        lambda xml: xml.replace("<tiangong2018>", '<!DOCTYPE t [<!ENTITY a "b">]>\n<tiangong2018>', 1),
        "has a document type, which could define entities",
    ),
    "other XML": (lambda _: "<rows><row/></rows>\n", "the log holds no records"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_is_one_message_with_its_place(
    run_in_process: Run, xml: str, tmp_path: Path, case: str
) -> None:
    change, said = WRONG[case]
    (tmp_path / FILE).write_text(change(xml), encoding="utf-8")
    result = run_in_process("fit", tmp_path / FILE, "--input-format", "tiangong", "-o", tmp_path / "out")
    assert result.returncode == UNUSABLE
    assert said in " ".join(result.stderr.split())
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [(), ("--clicks", FILE), ("--input-format", "yandex")])
def test_xml_is_refused_where_it_is_not_asked_for(
    run_in_process: Run, xml: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / FILE).write_text(xml, encoding="utf-8")
    pl.DataFrame({"session": [1], "query": ["q"], "doc": ["d"], "position": [1]}).write_csv(tmp_path / "shown.csv")
    log = "shown.csv" if "--clicks" in options else FILE
    result = run_in_process("fit", log, *options, "-o", "out", cwd=tmp_path)
    assert result.returncode == UNUSABLE
    assert "xml" in result.stderr.lower()
    assert "Traceback" not in result.stderr


def test_a_folder_is_read_without_the_xml_beside_its_logs(posbias: Posbias, xml: str, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / FILE).write_text(xml, encoding="utf-8")
    (folder / "flat.csv").write_bytes(flat(draw_pages())["flat.csv"])
    assert posbias("collect", folder).manifest["rows"]["read"] == 1200
