"""The reference pages of the site, generated from the package: settings, commands, the Python interface, extras."""

import re
from importlib import metadata
from pathlib import Path

import griffe
from structures import described_in

import digirl_dist
from digirl_dist.cli.main import COMMANDS
from digirl_dist.serve import server, service
from digirl_dist.settings.reference import sections

PURPOSES = {
    "android": "`emulator=android`",
    "atari": "Atari games by `emulator=gymnasium`",
    "autoui": "`agent=autoui`",
    "bridges": "runners of other libraries",
    "data": "tables from Python",
    "dev": "working on the package: tests, lint, types, this site",
    "docs": "this site",
    "endpoint": "`agent=endpoint`, `engine=openai`",
    "hub": "`digirl-dist export --push`",
    "jax": "skrl's agents of JAX (`examples/skrl_ppo.py`)",
    "judge": "`success=judge`",
    "miniwob": "`emulator=miniwob`",
    "mlflow": "`loggers=[mlflow]`",
    "openenv": "`emulator=openenv`, `digirl_dist.bridges.openenv`",
    "ray": "`collector=ray`",
    "serve": "`digirl-dist serve`",
    "skyrl": "environments for SkyRL",
    "trackio": "`loggers=[trackio]`",
    "train": "PyTorch: everything that acts or learns; without it, runs are looked at and machines prepared",
    "view": "`digirl-dist view`",
    "trl": "TRL's trainers",
    "verifiers": "environments for verifiers",
    "vlm": "`agent=vlm`",
    "wandb": "`loggers=[wandb]`",
}

HTTP = """\
What `digirl-dist serve` answers. [Your own trainer](../python.md#over-http) shows it at work.

Each request has the header `Authorization: Bearer TOKEN` and names this machine in `Host`. Requests of web pages, which
have an `Origin`, are refused. Bodies and answers are JSON; a body has at most BODY_MIB MiB. An answer that is no
success is `{"error": …}`: one sentence, with the remedy. In a path, a key is percent-encoded.

A rollout is `{key, state, cursor, task, seed, …}`. `state` is `running`, `landed`, or what it was lost to:
`infrastructure`, `environment`, `agent` or `cancelled`, with the `reason`; a loss has no reward. `cursor` is its place
in the order in which rollouts were over. That order is durable: who has seen all up to one cursor asks for those after
it, also after a day or a restart.
"""


def pages():
    """Returns the text of each page by its file name."""
    made = {"settings.md": settings(), "commands.md": commands(), "api.md": api(), "extras.md": extras()}
    return {**made, "http.md": http()}


def settings():
    """Every key of the configuration, with its type, unit, default and range."""
    parts = [
        "# Settings\n",
        "The keys of the configuration, as `key=value` on the command line or in a YAML file below `config/`. A value "
        "that is out of its range, or of another type, is refused in one line before anything starts. So is a key on "
        "the command line that nothing reads with the other settings, such as `evaluation.episodes=8` without "
        "`evaluation.every`; a file may hold most of these for the commands that read them. "
        "`digirl-dist settings --expert` prints further keys, which few runs have a reason to change.\n",
    ]
    for section in sections():
        if not section.rows and "=" not in section.title:  # a group whose options have nothing in common
            continue
        parts += [f"## {section.title}\n", f"{prose(section.about)}\n"]
        if rows := [row_of(row) for row in section.rows if not row.expert]:
            parts += ["| key | type, range, unit | default | meaning |\n| --- | --- | --- | --- |", *rows, ""]
    return "\n".join(parts)


def row_of(row):
    if not row.meaning:
        raise SystemExit(f"the setting {row.key} has no description: write one below it in its settings class")
    cells = [f'<a id="{row.anchor}"></a>`{row.key}`', row.kind, row.default, row.meaning]
    return f"| {' | '.join(prose(cell).replace('|', '&#124;') for cell in cells)} |"


def prose(text):
    """A docstring on one line; what looks like HTML in it stays text."""
    line = " ".join((text or "").split())
    return re.sub(r"<(?!/?a\b)", "&lt;", line) if "`" not in line else line


def commands():
    """The help of every command."""
    parts = ["# Commands\n", "`digirl-dist` alone shows what there is; each command explains itself with `--help`.\n"]
    for name, command in COMMANDS.items():
        shown = command.parser(name).format_help()
        parts.append(f"## {name}\n\n```text\n{shown.rstrip()}\n```\n")
    return "\n".join(parts)


def api():
    """The public names, with signatures and docstrings as they are in the source."""
    package = griffe.load("digirl_dist", search_paths=[str(Path(digirl_dist.__file__).parent.parent)])
    parts = ["# Python\n", "What `digirl_dist` exports. [The Python interface](../python.md) shows it at work.\n"]
    for name in digirl_dist.__all__:
        found = package[f"{digirl_dist._HOMES[name]}.{name}"]
        parts += [f"## {name}\n", *described_object(found, f"digirl_dist.{name}")]
        if found.is_class:
            for member in found.members.values():
                if not member.name.startswith("_") and not member.is_alias and member.docstring:
                    parts += [f"### {name}.{member.name}\n", *described_object(member, member.name)]
    return "\n".join(parts)


def described_object(found, shown):
    if found.is_function or found.is_class:
        given = [each for each in found.parameters if each.name not in ("self", "cls")]
        returns = f" -> {found.returns}" if found.is_function and found.returns else ""
        parameters = ", ".join(signature_part(each) for each in given)
        yield f"```python\n{shown}({parameters}){returns}\n```\n"
    elif found.annotation:
        yield f"```python\n{shown}: {found.annotation}\n```\n"
    if found.docstring:
        yield f"{found.docstring.value}\n"
    if found.is_class and "__init__" in found.members and found["__init__"].docstring:
        yield f"{found['__init__'].docstring.value}\n"


def signature_part(each):
    star = {"variadic positional": "*", "variadic keyword": "**"}.get(each.kind.value, "")
    hint = f": {each.annotation}" if each.annotation else ""
    return f"{star}{each.name}{hint}" + (f" = {each.default}" if each.default is not None and not star else "")


def http():
    """The routes of ``digirl-dist serve``, and the bodies that they take."""
    parts = [f"# The HTTP interface\n\n{HTTP.replace('BODY_MIB', str(server.BODY_BYTES >> 20))}"]
    for route in server.ROUTES:
        takes = f" The body: `{route.body.__name__}`." if route.body else ""
        says = prose(route.answer.__doc__).replace("``", "`")
        parts.append(f"## {route.method} {route.path.replace(':path', '')}\n\n{says}{takes}\n")
    for kind in (*(route.body for route in server.ROUTES if route.body), service.TaskGiven):
        parts += [part.replace("### ", "## ") for part in described_in(kind)]
    return "\n".join(parts)


def extras():
    """The extras of the package, and what each installs."""
    rows = {}
    for requirement in metadata.requires("digirl_dist") or []:
        needed, _, marker = requirement.partition(";")
        if extra := re.search(r"extra == ['\"]([\w-]+)", marker):
            rows.setdefault(extra[1], []).append(f"`{needed.strip()}`")
    listed = [
        f'| <a id="{name}"></a>`{name}` | {PURPOSES.get(name, "")} | {", ".join(rows[name])} |' for name in sorted(rows)
    ]
    head = "# Extras\n\n`pip install 'digirl_dist[NAME,NAME]'`. Workers get theirs by themselves.\n"
    return "\n".join([head, "| extra | for | installs |\n| --- | --- | --- |", *listed, ""])
