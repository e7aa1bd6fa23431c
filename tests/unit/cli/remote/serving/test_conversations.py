from __future__ import annotations

from pathlib import Path
from typing import Any

from chockstone.engine.conversations.answers import new_conversation_id
from chockstone.trainers import read_datums
from support.cli.loopback import Loopback
from support.engine.making import NOW
from support.engine.stored_answers import stored_answer, stored_choice


def keep(asked: Loopback, **facts: Any) -> str:
    conversations = asked.served.app.state.context.engine.conversations
    return str(asked.wait(conversations.keep(stored_answer("local", **facts))))


def test_conversations_are_listed_shown_rewarded_corrected_and_removed(asked: Loopback) -> None:
    assert asked.run("conversations", "ls").stdout.startswith("no conversations")
    one, two = keep(asked), keep(asked, model="other", choices=[stored_choice(), stored_choice()])

    assert asked.run("conversations", "reward", one, "-0.5").stdout == f"{one}: -0.5\n"
    assert asked.run("conversations", "reward", two, "2", "--choice", "1").stdout == f"{two}: 1: 2\n"
    assert asked.run("conversations", "reward", two, "2").exit_code == 2
    assert asked.run("conversations", "correct", one, "--tokens", "1,2").stdout == f"{one}: -0.5 corrected\n"

    listed = asked.run("conversations", "ls").stdout
    assert one in listed
    assert "2 of 2 conversations" in listed
    assert one not in asked.run("conversations", "ls", "--model", "other").stdout
    shown = asked.run("conversations", "show", one).stdout
    assert "[user] 2 + 2?" in shown
    assert "it is 4" in shown
    assert "corrected to: 2 tokens" in shown
    assert asked.json("conversations", "show", one)["prompt"] == [5, 6, 7]

    assert asked.run("conversations", "correct", one, "--remove").stdout == f"{one}: -0.5\n"
    assert asked.run("conversations", "reward", one, "none").stdout == f"{one}: no reward and no correction\n"
    assert asked.run("conversations", "rm", one, "--yes").stdout == "removed 1 conversation\n"
    assert asked.run("conversations", "rm", one, "--yes").exit_code == 1
    assert asked.json("conversations", "rm", "--all", "--yes")["removed"] == [two]


def test_an_export_is_a_new_file_of_datums_or_goes_to_standard_output(asked: Loopback, tmp_path: Path) -> None:
    rewarded, _ = keep(asked), keep(asked)
    asked.run("conversations", "reward", rewarded, "1")
    target = tmp_path / "datums.jsonl"

    assert asked.run("conversations", "export", target).stdout.startswith("1 datum in")

    (found,) = read_datums(target)
    assert found.conversation_id == rewarded
    assert found.datum.model_input.to_ints() == [5, 6, 7, 8]
    assert asked.json("conversations", "export", tmp_path / "again.jsonl")["datums"] == 1
    assert "is there already" in asked.run("conversations", "export", target).stderr
    printed = asked.run("conversations", "export", "--loss-fn", "cross_entropy").stdout
    assert len(printed.splitlines()) == 2


def test_what_a_model_wrote_cannot_move_the_cursor(asked: Loopback) -> None:
    hostile = keep(asked, messages=[{"role": "user\x1b[2J", "content": "\x1b[31mred"}], model="a\x1bb")

    assert "\x1b" not in asked.run("conversations", "show", hostile).stdout
    assert "\x1b" not in asked.run("conversations", "ls").stdout


def test_older_conversations_are_on_the_next_page(asked: Loopback) -> None:
    ids = sorted(keep(asked, conversation_id=new_conversation_id("resp_", NOW)) for _ in range(3))

    page = asked.json("conversations", "ls", "--limit", "2")

    assert [each["conversation_id"] for each in page["conversations"]] == ids[:0:-1]
    assert f"--before {page['next_before']}" in asked.run("conversations", "ls", "--limit", "2").stdout
    (last,) = asked.json("conversations", "ls", "--before", page["next_before"])["conversations"]
    assert last["conversation_id"] == ids[0]
