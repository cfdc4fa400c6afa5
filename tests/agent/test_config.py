"""What the agent's configuration takes, and what it says of the rest."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from colocate.agent.configuration import AGENT, build, load
from colocate.agent.schema import Config, Kubelet
from colocate.cli.config import render
from colocate.config.file import MAX_BYTES, Loaded
from colocate.config.override import Override, from_assignments, settable, unknown_variables
from colocate.errors import UserError
from colocate.kubelet import OnStop, Registration
from colocate.memory import Instant, MemorySettings, PageCache, Rung
from colocate.memory.agent.section import ForecastKind, ForecastSection, MemorySection
from colocate.model.values import Seconds, Share, Size, to_seconds

EXAMPLE = "'colocate config example' prints an example"


def read(text: str | bytes, environ: Mapping[str, str] | None = None, *flags: Override) -> Config:
    blob = text.encode() if isinstance(text, str) else text
    return build(blob, "agent.yaml", environ, flags).config


def sentence(text: str | bytes, environ: Mapping[str, str] | None = None, *flags: Override) -> str:
    with pytest.raises(UserError) as refused:
        read(text, environ, *flags)
    return str(refused.value)


def one(fields: str) -> str:
    """A configuration with one mock resource."""
    return f"version: 1\nmock: {{resources: [{{name: mock/gpu, {fields}}}]}}"


OTHERS: dict[str, object] = {
    "resource": "test.com/memory",
    "block_size": Size(2 << 20),
    "namespaces": ("batch",),
    "page_cache": PageCache.KERNEL,
    "margin": Share(0.2),
    "cool_down": Seconds(5),
    "hysteresis": 7,
    "swap": True,
    "without": (Rung.FAR,),
    "far_nodes": (3,),
    "demotion": True,
}
"""Of every field that the section of memory shares with its settings, a value that is not the default."""


def test_whatever_the_section_of_memory_says_reaches_those_who_decide_and_nothing_else_does() -> None:
    shared = set(MemorySection().__struct_fields__) & set(MemorySettings().__struct_fields__)
    assert shared == {*OTHERS, "forecast"}
    assert MemorySection().settings() == MemorySettings()
    for name, value in OTHERS.items():
        said = msgspec.structs.replace(MemorySection(), **{name: value})
        assert said.settings() == msgspec.structs.replace(MemorySettings(), **{name: value})
        assert (
            type(getattr(said.settings(), name)) is type(getattr(MemorySettings(), name))
            or name == "far_nodes"
        )
    instant = MemorySection(forecast=ForecastSection(kind=ForecastKind.INSTANT))
    assert instant.settings() == MemorySettings(forecast=Instant())


def test_a_version_is_enough() -> None:
    assert read("version: 1") == Config()


def test_everything_can_be_said() -> None:
    config = read(
        "version: 1\n"
        "kubelet: {root: /k, registration: watcher, onStop: withdraw, allocateTimeout: 1m}\n"
        "log: {format: json, level: debug}\n"
        "metrics: {address: '[::1]:9464'}\n"
        "control: {socket: /run/x.sock}\n"
    )
    settings = config.kubelet.settings()
    assert settings.paths.root == Path("/k")
    assert settings.registration is Registration.WATCHER
    assert settings.on_stop is OnStop.WITHDRAW
    assert settings.allocate_timeout == 60
    assert config.metrics.address.split_host() == ("::1", 9464)
    assert config.control.socket == Path("/run/x.sock")


def test_a_withdrawn_id_outlives_the_slowest_allocate() -> None:
    assert Kubelet(allocate_timeout=to_seconds("5m")).settings().linger > 300


@pytest.mark.parametrize("section", ["kubelet:", "mock:", "mock:\n  resources:", "log: # nothing yet"])
def test_a_section_with_nothing_in_it_counts_as_not_given(section: str) -> None:
    assert read(f"version: 1\n{section}\n") == Config()


@pytest.mark.parametrize("word", ["off", "'off'", '"off"'])
def test_off_is_a_word_and_no_boolean(word: str) -> None:
    assert read(f"version: 1\nmetrics: {{address: {word}}}").metrics.address.split_host() is None


def test_ids_with_leading_zeros_are_text() -> None:
    assert read(one("ids: [0001, 0002]")).mock.resources[0].ids == ("0001", "0002")


def test_an_anchor_can_be_used_again() -> None:
    config = read(
        "version: 1\nmock:\n  resources:\n"
        "  - {name: mock/a, count: 1, inject: &i {envs: {A: '{ids}'}}}\n"
        "  - {name: mock/b, count: 1, inject: *i}\n"
    )
    assert config.mock.resources[1].inject.envs == {"A": "{ids}"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("10", 10),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("2 m", 120),
        ("1h", 3600),
    ],
)
def test_spans_of_time(text: str, said: float) -> None:
    assert to_seconds(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", f"the file is empty; write at least 'version: 1'; {EXAMPLE}"),
        ("# nothing\n", f"the file is empty; write at least 'version: 1'; {EXAMPLE}"),
        ("- version: 1", f"a list is not a mapping; begin with 'version: 1'; {EXAMPLE}"),
        ("version 1", f"'version 1' is not a mapping; begin with 'version: 1'; {EXAMPLE}"),
        ("log: {}", "version: this field is missing; add 'version: 1' at the top"),
        (
            "version: 2",
            "version: this release reads version 1 and not 2; write 'version: 1', or use a release that "
            "reads the other",
        ),
        (
            "version: 1\nkubelt: {}",
            "kubelt: there is no such field; did you mean 'kubelet'? known fields are version, kubelet, log, "
            "metrics, control, mock, memory, cpus, gpus",
        ),
        (
            "version: 1\nkubelet: 5",
            "kubelet: 5 is not a mapping; write 'field: value' lines, with fields of root, registration, "
            "onStop, allocateTimeout",
        ),
        (
            "version: 1\nkubelet: {onStop: kep}",
            "kubelet.onStop: 'kep' is not known here; choose one of keep, withdraw (did you mean keep?)",
        ),
        (
            "version: 1\nkubelet: {allocateTimeout: soon}",
            "kubelet.allocateTimeout: 'soon' is not a span of time; write a number of seconds, or a span like "
            "500ms, 10s, 1m, 1h",
        ),
        (
            "version: 1\nkubelet: {allocateTimeout: 0}",
            "kubelet.allocateTimeout: 0s is out of range; choose more than 0s and at most 1h",
        ),
        (
            "version: 1\nkubelet: {root: kubelet}",
            "kubelet.root: 'kubelet' is not an absolute path; begin it with '/'",
        ),
        (
            "version: 1\nmetrics: {address: 9464}",
            "metrics.address: 9464 is not an address; write it like 127.0.0.1:9464 or [::1]:9464, or off",
        ),
        (
            "version: 1\nmetrics: {address: 'localhost:70000'}",
            "metrics.address: 70000 is not a port; choose one up to 65535",
        ),
        (
            f"version: 1\ncontrol: {{socket: /{'x' * 120}}}",
            "control.socket: this path would have 121 bytes, but a unix socket allows 107; choose a "
            "shorter path",
        ),
        (
            f"version: 1\nkubelet: {{root: /{'x' * 80}}}\n"
            "mock: {resources: [{name: mock/gpu, count: 1}]}",
            "kubelet.root: the socket for 'mock/gpu' would have 128 bytes, but a unix socket allows 107; "
            "choose a shorter one",
        ),
        ("version: 1\nversion: 1", "line 2, column 1: this field is given twice; remove one of them"),
        ("version: 1\n\tlog: {}", "line 2, column 1: this line is indented with a tab; use spaces"),
        ("version: 1\n---\nversion: 1", "line 2, column 1: a second document begins here; keep one per file"),
        ("version: !!int 1", "line 1, column 10: a tag (!) is not used here; put text in quotes instead"),
        ("version: *x", "line 1, column 10: *x refers to an anchor that does not exist; define it before"),
        (
            "version: &x [*x]",
            "line 1, column 14: *x refers to an anchor that does not exist; define it before",
        ),
        ("? [a]\n: b", "line 1, column 3: a field's name must be plain text"),
        ("version: \x07", "it has characters that YAML does not allow; remove them"),
        (b"version: \xff", "byte 9 is not UTF-8; save the file as UTF-8 text"),
        (
            f"version: 1\nx: {'[' * 100}",
            "line 2, column 44: nested more than 40 levels deep; no field is that deep",
        ),
        (b" " * (MAX_BYTES + 1), "the file has more than 1048576 bytes; make it smaller"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence(text: str | bytes, said: str) -> None:
    assert sentence(text) == f"agent.yaml: {said}"


def test_a_syntax_error_has_a_place() -> None:
    said = sentence("version: 1\nlog: {level: info")
    assert said.startswith("agent.yaml: line 2, column ")
    assert said.endswith("; correct it there or just above")


def test_aliases_cannot_make_a_small_file_large() -> None:
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    said = sentence("\n".join(["version: 1", "a0: &a0 [x]", *levels]))
    assert said.endswith("more than 300000 values up to here; make the file smaller")


FIELDS = "name, count, ids, idPrefix, numa, inject"
PLACEHOLDERS = "known are {ids}, {count} and {resource}; write {{ and }} for braces"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("conut: 1", f".conut: there is no such field; did you mean 'count'? known fields are {FIELDS}"),
        ("ids: []}, {count: 1", "[1].name: this field is missing and has no default; add it"),
        ("idPrefix: x", ".count: neither count nor ids is given; set count to the number of devices"),
        ("count: -1", ".count: -1 is below 0; set the number of devices"),
        (
            "count: 10000000",
            ".count: 10000000 devices do not fit into the 4 MiB that a kubelet takes in one message; lower "
            "it to at most 172172, or split the devices over several resources",
        ),
        ("count: yes", ".count: 'yes' is not a whole number; write it like 8"),
        ("count: true", ".count: true is not a whole number; write it like 8"),
        ("count: 010", ".count: '010' is not a whole number; write it like 8"),
        ("count: 1.5", ".count: 1.5 is not a whole number; write it like 8"),
        (
            "count: 1, ids: [a]",
            ".ids: count is also given; remove one of them",
        ),
        ("ids: [a], idPrefix: b", ".idPrefix: this belongs to count, but ids is given; remove one of them"),
        ("ids: [a, b, a]", ".ids[2]: 'a' is already in the list, at [0]; remove one of them"),
        ("ids: [7]", ".ids[0]: 7 is not text; put it in quotes"),
        ("ids: ['']", ".ids[0]: this id is empty; write ids like 'gpu-0000'"),
        (
            "ids: ['a,b']",
            ".ids[0]: 'a,b' has a blank, comma or control character; write ids like 'gpu-0000'",
        ),
        (
            "count: 1}, {name: mock/gpu, count: 1",
            "[1].name: 'mock/gpu' is already declared in mock.resources[0]; merge the two or rename one",
        ),
        (
            "count: 1}, {name: gpu, count: 1",
            "[1].name: 'gpu' is not allowed as a resource name: it needs a domain, as in 'example.com/gpu'",
        ),
        (
            "count: 1}, {name: kubernetes.io/gpu, count: 1",
            "[1].name: 'kubernetes.io/gpu' is not allowed as a resource name: the domain kubernetes.io is "
            "reserved for Kubernetes itself",
        ),
        ("count: 1, numa: {}", ".numa.nodes: this field is missing and has no default; add it"),
        (
            "count: 1, numa: {nodes: []}",
            ".numa.nodes: the list is empty; give at least one NUMA node, or remove numa",
        ),
        ("count: 1, numa: {nodes: [0, -1]}", ".numa.nodes[1]: -1 is not a NUMA node; choose 0 to 1023"),
        (
            "count: 1, inject: {envs: {A: '{id}'}}",
            f".inject.envs.A: a placeholder does not exist; {PLACEHOLDERS}",
        ),
        (
            "count: 1, inject: {annotations: {A: '{ids'}}",
            f".inject.annotations.A: a brace has no partner; {PLACEHOLDERS}",
        ),
        (
            "count: 1, inject: {envs: {'A B': x}}",
            ".inject.envs.A B: this cannot be the name of an environment variable; use letters, digits "
            "and '_'",
        ),
        (
            "count: 1, inject: {mounts: [{hostPath: a, containerPath: /b}]}",
            ".inject.mounts[0].hostPath: this is not an absolute path; begin it with '/'",
        ),
        (
            "count: 1, inject: {mounts: [{hostPath: /a, containerPath: /b, readOnly: yes}]}",
            ".inject.mounts[0].readOnly: 'yes' is not true or false; write one of the two",
        ),
        (
            "count: 1, inject: {devices: [{hostPath: /dev/null, permissions: x}]}",
            ".inject.devices[0].permissions: use the letters r (read), w (write) and m (mknod)",
        ),
        (
            "count: 1, inject: {cdi: [gpu]}",
            ".inject.cdi[0]: write a CDI device like 'vendor.com/class=name'",
        ),
    ],
)
def test_what_is_wrong_with_a_mock_resource_is_one_sentence(fields: str, said: str) -> None:
    where = "mock.resources" if said.startswith("[") else "mock.resources[0]"
    assert sentence(one(fields)) == f"agent.yaml: {where}{said}"


@pytest.mark.parametrize("value", ["5364537", "{5364537}", "'{5364537'", "[5364537]"])
def test_what_may_be_secret_is_not_repeated(value: str) -> None:
    assert "5364537" not in sentence(one(f"count: 1, inject: {{envs: {{TOKEN: {value}}}}}"))


def test_a_field_name_cannot_break_the_sentence() -> None:
    assert "\n" not in sentence('version: 1\n"a\\nb": 1')


class TestFiles:
    def test_missing(self, tmp_path: Path) -> None:
        file = tmp_path / "agent.yaml"
        with pytest.raises(UserError) as refused:
            load(file, {})
        assert str(refused.value) == (
            f"{file}: cannot be read (no such file or directory); check the path; {EXAMPLE}"
        )

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"cannot be read \(is a directory\); give the file in it$"):
            load(tmp_path, {})

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_not_allowed(self, tmp_path: Path) -> None:
        file = tmp_path / "agent.yaml"
        file.touch(mode=0)
        with pytest.raises(UserError, match=r"cannot be read \(permission denied\); let this user read it$"):
            load(file, {})

    def test_endless(self) -> None:
        with pytest.raises(UserError, match="more than 1048576 bytes"):
            load(Path("/dev/zero"), {})

    def test_no_path_at_all(self) -> None:
        with pytest.raises(UserError, match="cannot be a path"):
            load(Path("a\0b"), {})

    def test_a_byte_order_mark_does_no_harm(self) -> None:
        assert read(b"\xef\xbb\xbfversion: 1") == Config()


class TestOverrides:
    def test_every_single_value_of_a_section_has_a_variable(self) -> None:
        others = {
            path: one.variable
            for path, one in settable(AGENT).items()
            if not path.startswith(("memory.", "cpus.", "gpus."))
        }
        assert others == {
            "kubelet.root": "COLOCATE_KUBELET_ROOT",
            "kubelet.registration": "COLOCATE_KUBELET_REGISTRATION",
            "kubelet.onStop": "COLOCATE_KUBELET_ON_STOP",
            "kubelet.allocateTimeout": "COLOCATE_KUBELET_ALLOCATE_TIMEOUT",
            "log.format": "COLOCATE_LOG_FORMAT",
            "log.level": "COLOCATE_LOG_LEVEL",
            "metrics.address": "COLOCATE_METRICS_ADDRESS",
            "control.socket": "COLOCATE_CONTROL_SOCKET",
        }
        assert settable(AGENT)["memory.blockSize"].variable == "COLOCATE_MEMORY_BLOCK_SIZE"
        assert settable(AGENT)["memory.forecast.kind"].variable == "COLOCATE_MEMORY_FORECAST_KIND"
        assert "memory.farNodes" not in settable(AGENT), "lists are set in the file only"
        assert settable(AGENT)["gpus.hamiCore.enabled"].variable == "COLOCATE_GPUS_HAMI_CORE_ENABLED"

    def test_flags_win_over_the_environment_and_that_over_the_file(self) -> None:
        file = "version: 1\nkubelet: {root: /file, allocateTimeout: 1}\nlog: {level: debug}"
        environ = {"COLOCATE_KUBELET_ROOT": "/environment", "COLOCATE_KUBELET_ALLOCATE_TIMEOUT": "2s"}
        config = read(file, environ, *from_assignments(["kubelet.root=/flag"]))
        assert config.kubelet.root == Path("/flag")
        assert config.kubelet.allocate_timeout == 2.0
        assert config.log.level == "debug"

    def test_an_empty_variable_counts_as_not_set(self) -> None:
        assert read("version: 1", {"COLOCATE_LOG_LEVEL": ""}) == Config()

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("LOG_LEVEL", "loud", "'loud' is not known here; choose one of debug, info, warning, error"),
            ("KUBELET_ROOT", "here", "'here' is not an absolute path; begin it with '/'"),
            ("KUBELET_ALLOCATE_TIMEOUT", "2h", "7200s is out of range; choose more than 0s and at most 1h"),
        ],
    )
    def test_a_bad_variable_is_named_instead_of_the_file(self, name: str, value: str, said: str) -> None:
        assert sentence("version: 1", {f"COLOCATE_{name}": value}) == f"COLOCATE_{name}: {said}"

    @pytest.mark.parametrize(
        ("flag", "said"),
        [
            (
                "log.level=x",
                "--set log.level: 'x' is not known here; choose one of debug, info, warning, error",
            ),
            ("log.level", "--set log.level: there is no '='; write it as --set kubelet.onStop=withdraw"),
            (
                "mock.resources[0].count=3",
                "--set mock.resources[0].count: mock resources are set in the file only; edit them there",
            ),
        ],
    )
    def test_a_bad_flag_is_named_instead_of_the_file(self, flag: str, said: str) -> None:
        with pytest.raises(UserError) as refused:
            read("version: 1", {}, *from_assignments([flag]))
        assert str(refused.value) == said

    def test_an_unknown_field_in_a_flag_is_helped_with(self) -> None:
        said = sentence("version: 1", {}, Override("kubelet.onstop", "keep", "--set kubelet.onstop"))
        assert said.startswith("--set kubelet.onstop: there is no such field; did you mean 'kubelet.onStop'?")

    def test_a_variable_that_nobody_reads_is_worth_a_warning(self) -> None:
        environ = {
            "COLOCATE_LGO_LEVEL": "x",
            "COLOCATE_CRASH_AT": "1",
            "COLOCATE_LOG_LEVEL": "info",
            "HOME": "/",
        }
        [warning] = unknown_variables(environ, AGENT)
        assert warning.startswith(
            "COLOCATE_LGO_LEVEL: there is no such variable; did you mean 'COLOCATE_LOG_LEVEL'?"
        )


def test_what_is_shown_can_be_read_again() -> None:
    example = (Path(__file__).parents[2] / "examples" / "agent.yaml").read_bytes()
    config = build(example, "example").config
    shown = list(render(Loaded(config, {})))
    assert list(render(Loaded(read("\n".join(shown)), {}))) == shown


def test_what_is_shown_says_where_values_come_from() -> None:
    loaded = build(b"version: 1", "f", {"COLOCATE_LOG_LEVEL": "debug"}, from_assignments(["kubelet.root=/k"]))
    lines = list(render(loaded))
    assert "  level: debug  # from COLOCATE_LOG_LEVEL" in lines
    assert "  root: /k  # from --set kubelet.root" in lines
    assert sum("#" in line for line in lines) == 2


def test_the_example_is_the_one_that_is_printed() -> None:
    root = Path(__file__).parents[2]
    printed = (root / "src" / "colocate" / "agent" / "example.yaml").read_text()
    assert (root / "examples" / "agent.yaml").read_text() == printed


def only_a_config_or_a_sentence(blob: bytes) -> None:
    try:
        build(blob, "f")
    except UserError as refused:
        said = str(refused)
    else:
        return
    assert said.startswith("f: ")
    assert "\n" not in said


@given(st.binary(max_size=200))
def test_random_bytes_give_a_config_or_a_sentence(blob: bytes) -> None:
    only_a_config_or_a_sentence(blob)


@given(st.text(alphabet="version: 1\n\t-[]{}&*a!'\"#|>,?%@`~0.e", max_size=80))
def test_random_yaml_like_text_gives_a_config_or_a_sentence(text: str) -> None:
    only_a_config_or_a_sentence(f"version: 1\n{text}".encode())


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["keep", "10s"]),
)
SECTIONS = ["version", "kubelet", "log", "metrics", "control", "mock", "other"]
FIELDS_OF_SECTIONS = ["root", "onStop", "allocateTimeout", "level", "address", "socket", "resources"]
FIELDS_OF_INJECT = ["envs", "mounts", "devices", "annotations", "cdi", "hostPath", "containerPath"]
NAMES = st.sampled_from(SECTIONS + FIELDS_OF_SECTIONS + FIELDS_OF_INJECT)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
RESOURCES = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["mock/gpu", "a.b/c", "gpu"])},
        optional={
            "count": st.integers() | SCALARS,
            "ids": st.lists(SCALARS, max_size=3),
            "idPrefix": SCALARS,
            "numa": st.fixed_dictionaries({"nodes": st.lists(st.integers() | SCALARS, max_size=3)}),
            "inject": TREES,
        },
    ),
    max_size=3,
)


@given(st.dictionaries(NAMES, TREES, max_size=4), RESOURCES | TREES)
def test_random_trees_give_a_config_or_a_sentence(tree: dict[str, object], resources: object) -> None:
    whole = {**tree, "version": 1, "mock": {"resources": resources}}
    only_a_config_or_a_sentence(yaml.safe_dump(whole, allow_unicode=True).encode())
