"""Rooms: which folder may know which, how many modules live in one, and that nothing is a hub."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict

from tests.tidy.source_tree import ROOT, classes, cycle_in, imported, imports_of, modules

ROOM_MODULES_MAX = 15
REACHED_INTO_MAX = 12

# What a package may import besides itself. "broker.x" covers everything below it; typing imports
# count.
BELOW = {
    "raft": (),
    "broker.wire": (),
    "broker.compression": ("broker.wire",),
    "broker.subjects": ("broker.wire",),
    "broker.credentials": (),
    "broker.config": ("broker.subjects", "broker.credentials"),
    "broker.accounts": ("broker.subjects", "broker.config", "broker.credentials"),
    "broker.store": ("broker.wire", "broker.subjects"),
    "broker.jetstream": (
        "broker.subjects", "broker.wire", "broker.store", "broker.compression",
    ),
    "broker.scan": ("broker.store", "broker.wire", "broker.subjects", "broker.credentials"),
    "broker.spark": ("broker.scan", "broker.store", "broker.wire", "broker.subjects"),
    "broker.server": (
        "broker.accounts", "broker.config", "broker.subjects", "broker.wire", "broker.credentials",
        "broker.compression",
    ),
    "broker.monitor": (
        "broker.server", "broker.accounts", "broker.config", "broker.credentials",
        "broker.subjects", "broker.wire", "broker.compression",
    ),
    "broker.cluster": (
        "broker.server", "broker.accounts", "broker.config", "broker.jetstream", "broker.scan",
        "broker.store", "broker.subjects", "broker.wire", "broker.compression", "raft",
    ),
    "chaos.sim": ("raft", "broker"),
}  # fmt: skip

# Words everybody uses: values and the tables of the vocabulary, not owners of a running part.
VOCABULARY = (
    "broker.wire",
    "broker.subjects",
    "broker.accounts",
    "broker.store.block",
    "raft.types",
    "raft.core.messages",
    "broker.jetstream.config",
    "broker.jetstream.incoming_message",
    "chaos.sim.promises.journal",
)
VALUES = {
    "Enum",
    "IntEnum",
    "StrEnum",
    "Exception",
    "Struct",
    "msgspec.Struct",
    "Protocol",
    "NamedTuple",
}


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def test_imports_point_down() -> None:
    wrong = [
        f"{module.name} imports {name}"
        for module in modules().values()
        for package, below in BELOW.items()
        if inside(module.name, package)
        for name in imports_of(module)
        if not any(inside(name, allowed) for allowed in (package, *below))
    ]
    assert not wrong, "\n".join(wrong)


def test_raft_rooms_point_down() -> None:
    order = (
        "raft.types",
        "raft.core",
        "raft.transport",
        "raft.clock",
        "raft.store",
        "raft.snapshot",
        "raft.host",
    )
    wrong = [
        f"{module.name} imports {name}"
        for module in modules().values()
        for height, room in enumerate(order)
        if inside(module.name, room)
        for name in imports_of(module)
        if any(inside(name, above) for above in order[height + 1 :])
    ]
    assert not wrong, "\n".join(wrong)


def test_no_two_modules_import_each_other_even_for_types() -> None:
    graph = {name: imports_of(module) for name, module in modules().items()}
    assert not (cycle := cycle_in(graph)), " -> ".join(cycle)


def test_no_two_rooms_import_each_other_even_for_types() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for module in modules().values():
        for name in imports_of(module):
            room = modules()[name].room if name in modules() else name
            # A folder may use the folders inside it, and the other way round not.
            if room != module.room:
                graph[module.room].add(room)
    assert not (cycle := cycle_in(dict(graph))), " -> ".join(cycle)


def test_no_room_is_a_heap() -> None:
    counts = Counter(
        path.parent.relative_to(ROOT)
        for top in ("broker", "raft", "chaos")
        for ending in ("py", "pyx")
        for path in (ROOT / top).rglob(f"*.{ending}")
        if path.stem != "__init__"
    )
    heaps = {str(folder): count for folder, count in counts.items() if count > ROOM_MODULES_MAX}
    assert not heaps


def test_a_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for module, node in classes():
        if not node.name.startswith("_"):
            homes[node.name].append(module.name)
    twice = {name: where for name, where in homes.items() if len(where) > 1}
    assert not twice


def is_value(node: ast.ClassDef) -> bool:
    bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
    frozen = any("frozen=True" in ast.unparse(one) for one in node.decorator_list)
    return frozen or bool(bases & VALUES) or any("Error" in base for base in bases)


def test_no_class_is_a_hub() -> None:
    owners = {
        (module.name, node.name)
        for module, node in classes()
        if not is_value(node) and not any(inside(module.name, room) for room in VOCABULARY)
    }
    reached: dict[tuple[str, str], set[str]] = defaultdict(set)
    for module in modules().values():
        for home in imported(module):
            if home in owners and home[0] != module.name:
                reached[home].add(module.name)
    hubs = {".".join(home): len(by) for home, by in reached.items() if len(by) > REACHED_INTO_MAX}
    assert not hubs


def test_classes_are_composed_not_stacked() -> None:
    """At most one base class of our own above a class, and no NotImplementedError hooks."""
    bases = {
        node.name: [ast.unparse(base).partition("[")[0] for base in node.bases]
        for _, node in classes()
    }

    def is_exempt(name: str) -> bool:
        """Protocols state nothing but a shape; exceptions are a hierarchy by nature."""
        above = bases.get(name, [])
        return bool({"Protocol", "Exception"} & set(above)) or any(map(is_exempt, above))

    def depth(name: str) -> int:
        own = [base for base in bases[name] if base in bases and not is_exempt(base)]
        return max((1 + depth(base) for base in own), default=0)

    deep = {name: depth(name) for name in bases if depth(name) > 1}
    assert not deep
    hooks = [
        module.name
        for module in modules().values()
        if "NotImplementedError" in module.path.read_text()  # few to unparse, which takes long
        and "NotImplementedError" in ast.unparse(module.tree)
    ]
    assert not hooks
