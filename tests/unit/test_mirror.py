"""``tests/unit`` mirrors ``src/chockstone``: a source's tests are found by its name.

``engine/runs/lanes.py`` is tested by ``tests/unit/engine/runs/test_lanes.py``, or by several files
``test_lanes_<aspect>.py`` beside it. A claim about several sources is tested in a folder ``behaviour``.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pytest

UNIT = Path(__file__).parent
SOURCE = UNIT.parents[1] / "src" / "chockstone"
SMALL_LINES: Final = 40  # a source this short may be tested through the file that uses it

# Sources without a namesake test. This list only shrinks: name a test after the source and delete the line.
WITHOUT_TESTS: Final = {
    "api/admission/hosts.py",
    "api/admission/protocol.py",
    "api/app.py",
    "api/bodies.py",
    "api/config.py",
    "api/context.py",
    "api/downloads/signed_urls.py",
    "api/errors.py",
    "api/lookup.py",
    "api/loop_health.py",
    "api/operations/audit.py",
    "api/replica/app.py",
    "api/replica/callers.py",
    "api/replica/engine_link.py",
    "api/replica/server.py",
    "api/serving/preparing.py",
    "api/serving/server.py",
    "api/tinker/auth.py",
    "api/tinker/billing.py",
    "api/tinker/futures.py",
    "api/tinker/models.py",
    "api/tinker/samplers.py",
    "api/tinker/service.py",
    "api/tinker/sessions.py",
    "api/tinker/traces.py",
    "api/tinker/training.py",
    "backends/export/base_files.py",
    "backends/export/encryption.py",
    "backends/export/model_files.py",
    "backends/export/shards.py",
    "backends/fsdp/base_model.py",
    "backends/fsdp/follower_broadcast.py",
    "backends/fsdp/follower_channels.py",
    "backends/fsdp/full_weights.py",
    "backends/fsdp/model_shards.py",
    "backends/fsdp/parameters.py",
    "backends/fsdp/process_group.py",
    "backends/fsdp/restore_templates.py",
    "backends/losses/graph_operations.py",
    "backends/losses/policy_metrics.py",
    "backends/ray/actor.py",
    "backends/ray/driver.py",
    "backends/ray/group.py",
    "backends/ray/plan.py",
    "backends/ray/rank_listener.py",
    "backends/supervision/instruction_probe.py",
    "backends/supervision/process.py",
    "backends/supervision/supervisor.py",
    "backends/training/batch_result.py",
    "backends/training/forward.py",
    "backends/training/full.py",
    "backends/training/pass_outcome.py",
    "backends/training/process_group.py",
    "backends/training/saved_state.py",
    "backends/worker/parts.py",
    "backends/worker/sampler_weights.py",
    "backends/worker/sampling_source.py",
    "catalog/catalog.py",
    "catalog/database/retry.py",
    "catalog/database/rows.py",
    "catalog/errors.py",
    "catalog/migrations/versions/v0001_first_tables.py",
    "catalog/migrations/versions/v0002_life_of_a_checkpoint.py",
    "catalog/schema.py",
    "catalog/tables/checkpoint_rows.py",
    "catalog/tables/checkpoint_usage.py",
    "catalog/tables/engine.py",
    "checkpoints/errors.py",
    "checkpoints/format/dtypes.py",
    "checkpoints/format/holdings.py",
    "checkpoints/format/host_memory.py",
    "checkpoints/ranks/coordinator.py",
    "checkpoints/ranks/part_write.py",
    "checkpoints/ranks/peers.py",
    "checkpoints/ranks/ranked_restore.py",
    "checkpoints/ranks/share.py",
    "checkpoints/reading/listing.py",
    "checkpoints/reading/reader.py",
    "checkpoints/restoring/destinations.py",
    "checkpoints/restoring/new_directory.py",
    "checkpoints/restoring/optimizer_template.py",
    "checkpoints/restoring/receipt.py",
    "checkpoints/restoring/verdicts.py",
    "checkpoints/retention/chain_facts.py",
    "checkpoints/retention/enforcement.py",
    "checkpoints/runtime/threads.py",
    "checkpoints/saving/buffers.py",
    "checkpoints/saving/file_image.py",
    "checkpoints/saving/handle.py",
    "checkpoints/saving/image.py",
    "checkpoints/saving/job.py",
    "checkpoints/saving/snapshot.py",
    "checkpoints/saving/writer.py",
    "checkpoints/stores/bucket.py",
    "checkpoints/stores/file_sink.py",
    "checkpoints/stores/file_source.py",
    "checkpoints/stores/object_source.py",
    "checkpoints/stores/obstore_bucket.py",
    "checkpoints/stores/posix.py",
    "checkpoints/stores/s3_bucket.py",
    "checkpoints/stores/s3_connection.py",
    "checkpoints/stores/s3_sink.py",
    "checkpoints/stores/s3_upload.py",
    "cli/commands/checkpoints/contents.py",
    "cli/commands/checkpoints/extraction.py",
    "cli/commands/checkpoints/policy.py",
    "cli/commands/checkpoints/removal.py",
    "cli/commands/checkpoints/sharing.py",
    "cli/commands/checkpoints/trash.py",
    "cli/commands/runs.py",
    "cli/local/doctor_explanations.py",
    "cli/local/doctor_report.py",
    "cli/local/resume_report.py",
    "cli/models/making.py",
    "cli/models/shape.py",
    "cli/models/tokenizer.py",
    "cli/output/formatting.py",
    "cli/remote/addresses.py",
    "cli/remote/checkpoint.py",
    "cli/training/report.py",
    "cli/training/run.py",
    "cli/training/server.py",
    "cli/training/stopping.py",
    "engine/config.py",
    "engine/doctor/findings.py",
    "engine/journal/scan.py",
    "engine/journal/segment_file.py",
    "engine/runs/execution.py",
    "engine/runs/journal_marks.py",
    "engine/runs/kept_losses.py",
    "engine/runs/run.py",
    "engine/runs/run_journal.py",
    "engine/samples/requests.py",
    "engine/storage/shared_bytes.py",
    "sampling/admission.py",
    "sampling/fused/adapter.py",
    "sampling/fused/attention.py",
    "sampling/fused/batch.py",
    "sampling/fused/cache.py",
    "sampling/fused/decoder.py",
    "sampling/fused/llama.py",
    "sampling/fused/multi_lora.py",
    "sampling/fused/weights.py",
    "sampling/generic.py",
    "sampling/job.py",
    "sampling/network.py",
    "sampling/sequence.py",
    "sampling/vllm/adapters.py",
    "sampling/vllm/completion_answer.py",
    "sampling/vllm/connection.py",
    "sampling/vllm/head_probe.py",
    "sampling/vllm/server.py",
    "wire/codecs/json_values.py",
    "wire/codecs/protobuf.py",
    "wire/codecs/samples.py",
    "wire/codecs/tensors.py",
    "wire/failures.py",
    "wire/messages/billing.py",
    "wire/messages/checkpoints.py",
    "wire/messages/futures.py",
    "wire/messages/models.py",
    "wire/messages/policies.py",
    "wire/messages/runs.py",
    "wire/messages/sampling_sessions.py",
    "wire/messages/schema.py",
    "wire/messages/service.py",
    "wire/messages/sessions.py",
    "wire/messages/storage.py",
    "wire/messages/training.py",
    "wire/messages/weights.py",
}


def sources() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if path.name != "__init__.py"]


def unit_tests() -> list[Path]:
    """Test files that must name a source: all but those in ``behaviour`` and directly in ``tests/unit``."""
    paths = [path.relative_to(UNIT) for path in sorted(UNIT.rglob("test_*.py"))]
    return [path for path in paths if len(path.parts) > 1 and "behaviour" not in path.parts]


def is_named_after(test: Path, source: Path) -> bool:
    subject = test.stem.removeprefix("test_")
    return subject == source.stem or subject.startswith(f"{source.stem}_")


def has_code(source: Path) -> bool:
    text = source.read_text()
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return len(text.splitlines()) > SMALL_LINES and any(isinstance(n, definitions) for n in ast.parse(text).body)


@pytest.mark.parametrize("test", unit_tests(), ids=str)
def test_a_unit_test_is_named_after_a_source_in_the_mirrored_folder(test: Path) -> None:
    folder = SOURCE / test.parent

    assert any(is_named_after(test, source) for source in folder.glob("*.py")), (
        f"{test} names no source in {folder.relative_to(SOURCE)}; a claim about several sources belongs in behaviour/"
    )


def test_every_source_has_a_namesake_test() -> None:
    tested = [(UNIT / test, test.parent) for test in unit_tests()]

    missing = {
        str(source.relative_to(SOURCE))
        for source in sources()
        if has_code(source)
        and not any(
            folder == source.relative_to(SOURCE).parent and is_named_after(test, source) for test, folder in tested
        )
    }

    assert not missing - WITHOUT_TESTS, "add a test named after each of these sources"
    assert not WITHOUT_TESTS - missing, "these have tests now, or are gone: delete their lines from WITHOUT_TESTS"
