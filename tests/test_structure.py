"""The shape of the package: imports point one way, and the command line is quick because it imports little."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

import digirl_dist
from digirl_dist.child_process import environment
from digirl_dist.settings.plugins import KINDS

pytestmark = pytest.mark.component

PACKAGE = Path(digirl_dist.__file__).parent
ROOT = Path(__file__).resolve().parent.parent

LAYERS = [
    ["__init__", "child_process", "errors", "plain_text", "types"],
    ["capacity", "exit_status", "threads"],
    ["parallel", "settings", "tasks", "user_code"],
    ["chat", "protocol", "trajectory"],
    ["collection", "emulator"],
    ["storage"],
    ["agent", "judge", "ssh"],
    ["algorithm", "inference"],
    ["rollout", "trainer"],
    ["report", "slurm", "worker_program"],
    ["fleet"],
    ["collect", "doctor", "ray_cluster"],
    ["export", "host", "plan", "vec_env"],
    ["assembly"],
    ["api"],
    ["evaluate", "serve", "train"],
    ["viewer"],
    ["bridges", "cli"],
    ["__main__"],
]
"""A part, a room or a module at the root, imports only parts of the layers above it in this list."""

MOST_AT_THE_ROOT = 12

IMPLEMENTATIONS = {
    *(f"{kind.folder.split('.')[0]}.{name}" for kind in KINDS for name in kind.names()),
    "collect.offline",
    "collect.fleet_collector",
    "collect.inline",
    "judge.model",
    "ray_cluster.connection",
    "trainer.inprocess",
    "trainer.joint",
}
"""Only the composition root, the room ``assembly``, and the plugins of their own room import these."""


OPENERS = {"settings.regular_file": "reads", "storage.atomic_files": "writes"}
OPENS = {
    *(
        "open",
        "os.open",
        "io.open",
        "FileIO",
        "mmap.mmap",
        "np.load",
        "torch.load",
        "safe_open",
        "load_file",
        "save_file",
    ),
    *(".open", ".read_text", ".read_bytes", ".write_text", ".write_bytes"),
}
"""A name with a dot in front is a method: of a path where it has no argument but modes, encodings and contents."""
OPEN_BY_THEMSELVES = {
    "capacity": "cgroups' files",
    "child_process": "logs of children; it is below the room of the openers, and follows no link",
    "doctor": "/proc and /sys of this machine, its AVDs, and scripts of this package",
    "emulator": "pages of packages, AVDs, consoles and locks of this machine",
    "parallel.loopback": "/proc",
    "ray_cluster": "job folders of this process's own user, on workers",
    "ssh": "keys, configurations and known hosts of the user, and folders of mode 0700",
    "user_code.blame": "records of packages on the path of modules",
    "user_code.neighbours": "modules that are imported, of the user",
    "user_code.packing": "files that the host packed for its own processes",
    "worker_program": "job folders on workers, which have their own opener",
    "fleet.install": "this package, to be packed",
    "agent.vlm.served": "a folder made by mkdtemp",
    "collect.inline": "a folder made by mkdtemp",
    "protocol.job_folder": "job folders on workers, and /proc",
    "exit_status": "/dev/null",
    "export.atif": "a folder made by mkdtemp, until all of it is there",
    "export.datasets": "a folder made by mkdtemp, until all of it is there",
    "report.loggers": "a folder made by mkdtemp",
    "report.bundle": "pages of this package",
    "report.why": "/proc",
    "cli.train": "a file of this package",
    "viewer.server": "pages of this package",
    "storage.checkpoint": "weights, once regular_file has looked at them; new ones in a new folder",
    "storage.import_digirl": "pictures that the user names",
    "storage.provenance": "/proc",
    "storage.safe_torch_load": "what regular_file has looked at, and /proc",
    "train.launch": "bytes that are in memory",
}


def layer(part: str) -> int:
    return next(level for level, parts in enumerate(LAYERS) if part in parts)


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield ".".join(path.relative_to(PACKAGE).with_suffix("").parts), path


def imports(path: Path) -> Iterator[str]:
    """Modules of this package that a file imports, as ``fleet.worker``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "digirl_dist":
            base = (node.module or "").removeprefix("digirl_dist").removeprefix(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}" if base else alias.name
                is_module = (PACKAGE / f"{inner.replace('.', '/')}.py").exists()
                yield inner if is_module else base or "__init__"
        elif isinstance(node, ast.Import):
            yield from (
                alias.name.removeprefix("digirl_dist").removeprefix(".") or "__init__"
                for alias in node.names
                if alias.name.split(".")[0] == "digirl_dist"
            )


def test_imports_point_one_way() -> None:
    """So there is no circle between rooms either. The package itself imports what it exports when it is asked for."""
    backwards = {}
    for name, path in modules():
        own = name.split(".")[0]
        targets = {target.split(".")[0] for target in imports(path)} - {own, "__init__"}
        if own != "__init__" and (wrong := [target for target in targets if layer(target) >= layer(own)]):
            backwards[name] = wrong
    assert backwards == {}


def test_the_root_has_few_modules_and_every_room_says_what_it_is_for() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_AT_THE_ROOT
    for room in {path.parent for path in PACKAGE.glob("*/*.py")}:
        says = ast.get_docstring(ast.parse((room / "__init__.py").read_text()))
        assert says, f"{room.name}/__init__.py does not say what the room is for"


@pytest.mark.parametrize("script", ["map", "protocol", "size"])
def test_what_a_script_draws_is_up_to_date_and_nothing_has_grown(script: str) -> None:
    subprocess.run([sys.executable, ROOT / "script" / script, "--check"], check=True)


@pytest.mark.unit
def test_every_place_that_contributors_are_sent_to_is_there() -> None:
    rows = [line for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if line.startswith("| ")]
    places = re.findall(r"`([\w/]+\.(?:py|md))`((?:[:,] `[\w.]+`)*)", "\n".join(rows))
    assert len(places) > 25
    for file, names in places:
        if "NAME" not in file:
            text = next(root / file for root in (PACKAGE, ROOT) if (root / file).exists()).read_text()
            missing = [name for name in re.findall(r"`[\w.]*?(\w+)`", names) if not re.search(rf"\b{name}\b", text)]
            assert not missing, f"{file} has no {missing}"


@pytest.mark.unit
def test_no_test_lies_in_a_folder_that_pytest_passes_over(pytestconfig: pytest.Config) -> None:
    paths = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]
    rules = pytestconfig.getini("norecursedirs")
    passed_over = [path for path in paths if any(fnmatch(part, rule) for part in path.parts[:-1] for rule in rules)]
    assert not passed_over


def test_only_the_composition_root_imports_implementations() -> None:
    for name, path in modules():
        if name.split(".")[0] == "assembly":
            continue
        for target in imports(path):
            for implementation in IMPLEMENTATIONS:
                is_it = target == implementation or target.startswith(implementation + ".")
                inside = name.split(".")[0] == implementation.split(".")[0]  # one may build on another of its seam
                assert not is_it or inside, f"{name} imports {target}"


def test_help_answers_at_once_since_it_imports_one_small_package_beside_this_one() -> None:
    program = (
        "import sys; before = set(sys.modules); from digirl_dist.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules.keys() - before} - sys.stdlib_module_names))"
    )
    shown = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    *told, imported = shown.stdout.splitlines()
    assert "worker_ips" in "".join(told) and imported == "['digirl_dist', 'msgspec', 'typing_extensions']"


def test_composing_and_refusing_a_configuration_imports_nothing_heavy() -> None:
    """Each plugin's file is imported to compose, so what it builds is imported in its methods."""
    program = (
        "import sys\n"
        "from digirl_dist.assembly.validate import refuse_contradictions\n"
        "from digirl_dist.settings import configuration\n"
        "settings = configuration.load('config/multimachine', 'host', ['train_algorithm=grpo', 'dry_run=true'])\n"
        "refuse_contradictions(settings)\n"
        "heavy = ('torch', 'transformers', 'selenium', 'gymnasium', 'jax', 'ray', 'httpx', 'pyarrow', 'paramiko')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    assert shown.stdout.strip() == "[]", shown.stderr


def test_the_way_to_a_worker_program_imports_nothing_heavy() -> None:
    program = (
        "import sys, digirl_dist.worker_program.attach, digirl_dist.worker_program.courier\n"
        "import digirl_dist.ssh.localhost_server\n"
        "print([name for name in ('torch', 'numpy', 'pyarrow', 'omegaconf', 'paramiko') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    assert shown.stdout.strip() == "[]"


def _opens(path: Path) -> Iterator[str]:
    """Calls that open a file by themselves, with their lines; ``Image.open`` and ``ssh``'s ``open`` are none."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        method = f".{node.func.attr}" if isinstance(node.func, ast.Attribute) else called
        is_mode = all(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in node.args)
        is_path = method != ".open" or (is_mode and bool(node.args))
        if called in OPENS or (method in OPENS and is_path and not called.startswith("atomic_files.")):
            yield f"{path.relative_to(ROOT)}:{node.lineno} {called}"


def test_files_are_opened_in_two_places_and_elsewhere_for_a_reason() -> None:
    """Class 4: a run folder may be a stranger's, whose pipes, devices and links no other module meets."""
    allowed, used, bare = (*OPENERS, *OPEN_BY_THEMSELVES), set(), []
    for name, path in modules():
        place = next((each for each in allowed if f"{name}.".startswith(f"{each}.")), None)
        found = list(_opens(path))
        used |= {place} if found else set()
        bare += found if place is None else []
    assert bare == []
    assert used >= set(allowed), f"no reason is needed for {set(allowed) - used}"
