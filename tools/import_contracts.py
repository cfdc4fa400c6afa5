"""Two kinds of import contract that import-linter does not have. pyproject.toml uses them.

`house`: the decisions of a capability import what decisions may, and no acting part below them. An acting part
imports its own decisions and the edges. Neither imports another capability.
`face`: from outside, a room is imported by its `__init__` and by the public modules that are listed. The acting parts
of a house are rooms of their own.
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


class HouseContract(_ImportContract):
    """A capability: options `house`, `acting` (packages below it), `decisions_import` and `acting_imports`."""

    type_name = "house"
    house = fields.StringField()
    acting = fields.ListField(subfield=fields.StringField(), required=False)
    decisions_import = fields.ListField(subfield=fields.StringField())
    acting_imports = fields.ListField(subfield=fields.StringField())
    remedy = (
        "Decisions take what they need as an argument; an acting part uses its own house and the edges; "
        "what two capabilities need is joined by a process, or is a fact of colocate.model."
    )

    def wrong(self, graph: ImportGraph) -> Iterator[tuple[str, str]]:
        parts = [f"{self.house}.{part}" for part in self.acting or ()]
        for part in parts:
            if part not in graph.modules:
                raise ValueError(f"There is no {part}, which is listed as an acting part.")
        top = self.house.split(".")[0]
        for importer in {self.house, *graph.find_descendants(self.house)}:
            acts = any(_inside(importer, part) for part in parts)
            allowed = [self.house, *(self.acting_imports if acts else self.decisions_import)]
            for imported in graph.find_modules_directly_imported_by(importer):
                if not _inside(imported, top):
                    continue
                into_acting = any(_inside(imported, part) for part in parts)
                if (into_acting and not acts) or not any(_inside(imported, one) for one in allowed):
                    yield importer, imported


class FaceContract(_ImportContract):
    """A room with a face: `room`, `public_modules` beside its `__init__`, `rooms_below` with faces of their own."""

    type_name = "face"
    room = fields.StringField()
    public_modules = fields.ListField(subfield=fields.StringField(), required=False)
    rooms_below = fields.ListField(subfield=fields.StringField(), required=False)
    remedy = (
        "Import it from the room's __init__, or from a public module; "
        "if the module is to be public, list it in pyproject.toml."
    )

    def wrong(self, graph: ImportGraph) -> Iterator[tuple[str, str]]:
        public = {f"{self.room}.{module}" for module in self.public_modules or ()}
        rooms = {f"{self.room}.{room}" for room in self.rooms_below or ()}
        unknown = (public | rooms) - graph.modules
        if unknown:
            raise ValueError(f"There is no {min(unknown)}, which is listed as public.")
        below = {module for room in rooms for module in (room, *graph.find_descendants(room))}
        for imported in graph.find_descendants(self.room) - public - below:
            for importer in graph.find_modules_that_directly_import(imported):
                if not _inside(importer, self.room):
                    yield importer, imported
