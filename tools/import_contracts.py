"""Two kinds of import contract that import-linter does not have. pyproject.toml uses them.

`only`: the rooms import, of this package, themselves and what is listed. A room in parentheses need not exist yet.
`face`: from outside, a room is imported by its `__init__` and by the public modules that are listed.
"""

from collections.abc import Iterator

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


def _inside(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


class _ImportContract(Contract):
    """Kept where no import is wrong; what is wrong, and what to do, is for the kinds to say."""

    remedy = ""

    def wrong(self, graph: ImportGraph) -> Iterator[tuple[str, str]]:
        """The imports that are not allowed: importer and imported."""
        raise NotImplementedError

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        wrong = sorted(self.wrong(graph))
        return ContractCheck(kept=not wrong, metadata={"wrong": wrong, "graph": graph})

    def render_broken_contract(self, check: ContractCheck) -> None:
        graph: ImportGraph = check.metadata["graph"]
        for importer, imported in check.metadata["wrong"]:
            details = graph.get_import_details(importer=importer, imported=imported)
            lines = ", ".join(f"l.{one['line_number']}" for one in details)
            output.print_error(f"- {importer} -> {imported} ({lines})", bold=False)
        output.new_line()
        output.print_error(self.remedy, bold=False)


class OnlyContract(_ImportContract):
    """Rooms that know little: options `rooms` and `may_import`."""

    type_name = "only"
    rooms = fields.ListField(subfield=fields.StringField())
    may_import = fields.ListField(subfield=fields.StringField())
    remedy = "Pass what is needed as an argument, or do it in the process that carries the decision out."

    def wrong(self, graph: ImportGraph) -> Iterator[tuple[str, str]]:
        top = {module.split(".")[0] for module in graph.modules}
        for written in self.rooms:
            room = written.strip("()")
            if room not in graph.modules:
                if room == written:
                    raise ValueError(f"There is no {room}; put it in parentheses if it is still to come.")
                continue
            for importer in {room, *graph.find_descendants(room)}:
                for imported in graph.find_modules_directly_imported_by(importer):
                    allowed = any(_inside(imported, one) for one in (room, *self.may_import))
                    if imported.split(".")[0] in top and not allowed:
                        yield importer, imported


class FaceContract(_ImportContract):
    """A room with a face: options `room` and, where its `__init__` is not all of it, `public_modules`."""

    type_name = "face"
    room = fields.StringField()
    public_modules = fields.ListField(subfield=fields.StringField(), required=False)
    remedy = (
        "Import it from the room's __init__, or from a public module; "
        "if the module is to be public, list it in pyproject.toml."
    )

    def wrong(self, graph: ImportGraph) -> Iterator[tuple[str, str]]:
        public = {f"{self.room}.{module}" for module in self.public_modules or ()}
        unknown = public - graph.modules
        if unknown:
            raise ValueError(f"There is no {min(unknown)}, which is listed as public.")
        for imported in graph.find_descendants(self.room) - public:
            for importer in graph.find_modules_that_directly_import(imported):
                if not _inside(importer, self.room):
                    yield importer, imported
