"""``sluice run`` starts the session of a program with these arguments."""

from __future__ import annotations

import pytest

from sluice.submit import program


@pytest.mark.parametrize(
    ("own_words", "jars"),
    [
        (["pyspark-shell"], "sluice.jar"),
        (["--jars", "a.jar,b.jar", "--master", "local[2]", "pyspark-shell"], "sluice.jar,a.jar,b.jar"),
        (["--master", "local[2]", "--jars=a.jar", "pyspark-shell"], "sluice.jar,a.jar"),
        (["--jars", "a.jar", "--jars", "b.jar", "pyspark-shell"], "sluice.jar,b.jar"),
    ],
)
def test_the_jars_and_other_arguments_of_the_user_stay(
    monkeypatch: pytest.MonkeyPatch, own_words: list[str], jars: str
) -> None:
    monkeypatch.setattr(program, "jar_arguments", lambda: ["--jars", "sluice.jar"])
    words = program._submit_words(own_words, {"spark.sluice.lock": "write"})
    assert words[:2] == ["--jars", jars]
    assert words.count("--jars") == 1
    assert "spark.sluice.lock=write" in words
    remaining_words = [word for word in own_words if ".jar" not in word and word != "--jars"]
    assert words[-len(remaining_words) :] == remaining_words
