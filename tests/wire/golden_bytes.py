"""The golden files of ``docs/spec``.  ``python -m tests.wire.golden_bytes`` writes them anew, which
changes the format: do so with a new format number only."""

from __future__ import annotations

from pathlib import Path

from tests.wire import samples

from kvbaton.wire.manifest import encode_manifest, wrap
from kvbaton.wire.prefix import encode_prefix
from kvbaton.wire.transcript import encode_transcript

FOLDER = Path(__file__).parent / "golden"


def files() -> dict[str, bytes]:
    """File name -> bytes, as the code writes them now."""
    payload = encode_manifest(samples.manifest())
    return {
        "run.safetensors": samples.file_bytes(samples.run_segment()),
        "window.safetensors": samples.file_bytes(samples.window_segment()),
        "transcript.json": encode_transcript(samples.TRANSCRIPT),
        "manifest.json": payload,
        "baton.dsse.json": wrap(payload),
        "prefix.json": encode_prefix(samples.prefix_record()),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, data in files().items():
        (FOLDER / name).write_bytes(data)
