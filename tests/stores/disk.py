"""Looking at a directory store from outside."""

from kvbaton.stores import DirectoryStore, Key, Kind


def segment(number):
    """The key of a segment."""
    return Key(Kind.SEGMENT, f"{number:064x}")


def files_below(folder):
    """Every file below a folder except the account, relative, sorted."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if not path.is_dir() and path.name != "usage"
    )


def verify_clean(root):
    """A store has whole objects only, no temporary file, and an account that adds up."""
    entries = [entry for kind in Kind for entry in DirectoryStore(root).list(kind)]
    held = [f"{e.key.kind.value}/{e.key.name[:2]}/{e.key.name}" for e in entries]
    assert files_below(root) == sorted(held)
    assert DirectoryStore(root).used_bytes() == sum(entry.size_bytes for entry in entries)
