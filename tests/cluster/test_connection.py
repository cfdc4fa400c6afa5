"""Where the API server is: flags, kubeconfig files, the service account; and one sentence where it is not."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from colocate.cluster.connection import Connection, Flags, find, proxy_for
from colocate.cluster.secret import Secret
from colocate.errors import UserError

PEM = "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n"


INSECURE: dict[str, Any] = {"insecure-skip-tls-verify": True}


def config(name: str = "one", server: str = "https://one:6443", user: Any = None, **cluster: Any) -> Any:
    return {
        "clusters": [{"name": name, "cluster": {"server": server, **cluster}}],
        "users": [{"name": name, "user": {"token": "t0k3n"} if user is None else user}],
        "contexts": [
            {"name": name, "context": {"cluster": name, "user": name, "namespace": f"{name}-space"}}
        ],
        "current-context": name,
    }


class Files:
    """A folder with kubeconfig files, and a process that looks for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.account = folder / "account"
        self.environ: dict[str, str] = {}

    def write(self, name: str, document: Any) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
        return path

    def use(self, *documents: Any) -> list[Path]:
        paths = [self.write(f"config-{number}", document) for number, document in enumerate(documents)]
        self.environ["KUBECONFIG"] = ":".join(map(str, paths))
        return paths

    def in_pod(self) -> None:
        self.account.mkdir()
        for name, text in (("token", "account-token\n"), ("namespace", "pods-own"), ("ca.crt", PEM)):
            (self.account / name).write_text(text)
        self.environ |= {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}

    def find(self, **flags: Any) -> Connection:
        return find(Flags(**flags), self.environ, self.folder, self.account)

    def refusal(self, **flags: Any) -> str:
        with pytest.raises(UserError) as raised:
            self.find(**flags)
        text = str(raised.value)
        assert "\n" not in text
        return text.replace(f"{self.folder}/", "")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_kubeconfig_names_server_namespace_and_token(files: Files) -> None:
    files.use(config())
    found = files.find()
    assert (found.server, found.namespace) == ("https://one:6443", "one-space")
    assert found.login.token == Secret("t0k3n")
    assert found.origin.endswith("config-0: contexts[one]")


def test_the_file_in_the_home_is_used_where_none_is_named(files: Files) -> None:
    files.write(".kube/config", config("home"))
    assert files.find().namespace == "home-space"
    files.use(config("named"))
    assert files.find().namespace == "named-space"
    assert files.find(kubeconfig=files.folder / ".kube/config").namespace == "home-space"


def test_of_several_files_the_first_that_says_a_thing_wins(files: Files) -> None:
    first = config("one", server="https://first")
    second = config("one", server="https://second", **{"tls-server-name": "never"})
    second["clusters"] += config("two")["clusters"]
    second["users"] += config("two")["users"]
    second["contexts"] += config("two")["contexts"]
    second["current-context"] = "two"
    files.use(first, second)
    assert files.find().server == "https://first"
    assert files.find().server_name == ""
    assert files.find(context="two").namespace == "two-space"


def test_what_belongs_together_may_stand_in_different_files(files: Files) -> None:
    whole = config()
    files.use(*({field: value} for field, value in whole.items()))
    assert files.find().server == "https://one:6443"


def test_files_that_are_missing_are_passed_over(files: Files) -> None:
    files.use(config())
    files.environ["KUBECONFIG"] = f"/not/there::{files.environ['KUBECONFIG']}"
    assert files.find().namespace == "one-space"


def test_paths_in_a_file_mean_its_own_folder(files: Files) -> None:
    user = {"tokenFile": "token", "client-certificate": "../cert", "client-key": "/abs/key"}
    path = files.write("sub/config", config(user=user, **{"certificate-authority": "ca"}))
    found = files.find(kubeconfig=path)
    assert found.authority is not None
    assert found.authority.file == files.folder / "sub/ca"
    assert found.login.token_file == files.folder / "sub/token"
    assert found.login.certificate is not None
    assert found.login.certificate.file == files.folder / "sub/../cert"
    assert found.login.key is not None
    assert found.login.key.file == Path("/abs/key")


def test_data_in_the_file_goes_over_a_path(files: Files) -> None:
    data = base64.b64encode(PEM.encode()).decode()
    files.use(config(**{"certificate-authority": "x", "certificate-authority-data": data}))
    found = files.find()
    assert found.authority is not None
    assert found.authority.read("it") == PEM


def test_flags_go_over_everything(files: Files) -> None:
    files.use(config(), config("two"))
    found = files.find(
        context="two",
        server="https://flag:1/",
        namespace="flagged",
        token=Secret("flag"),
        certificate_authority=Path("/flag/ca"),
    )
    assert (found.server, found.namespace, found.login.token) == ("https://flag:1", "flagged", Secret("flag"))
    assert found.authority is not None
    assert found.authority.file == Path("/flag/ca")


def test_a_server_alone_is_enough(files: Files) -> None:
    found = files.find(server="https://bare", token_file=Path("/t"))
    assert (found.server, found.namespace, found.login.token_file) == ("https://bare", "default", Path("/t"))


def test_in_a_pod_the_service_account_is_used(files: Files) -> None:
    files.in_pod()
    found = files.find()
    assert (found.server, found.namespace) == ("https://10.0.0.1:443", "pods-own")
    assert found.login.token_file == files.account / "token"
    assert found.authority is not None
    assert found.authority.file == files.account / "ca.crt"
    files.use(config())
    assert files.find().namespace == "one-space"


def test_in_a_pod_an_ipv6_address_is_put_in_brackets(files: Files) -> None:
    files.in_pod()
    files.environ["KUBERNETES_SERVICE_HOST"] = "fd00::1"
    assert files.find().server == "https://[fd00::1]:443"


def test_impersonation_and_proxies_are_read(files: Files) -> None:
    user = {"token": "t", "as": "someone", "as-groups": ["a", "b"]}
    files.use(
        config(user=user, **{"proxy-url": "http://u:s3cr3t@proxy:3128", "tls-server-name": "kubernetes"})
    )
    found = files.find()
    assert (found.login.act_as, found.login.act_as_groups) == ("someone", ("a", "b"))
    assert (found.proxy, found.server_name) == (Secret("http://u:s3cr3t@proxy:3128"), "kubernetes")
    assert "s3cr3t" not in repr(found)


def without(document: Any, field: str) -> Any:
    return {key: value for key, value in document.items() if key != field}


BAD_FILES: list[tuple[Any, str]] = [
    ("a: [", "the kubeconfig config-0, line 1 is not YAML; correct or replace it"),
    ("- a", "the kubeconfig config-0 is not a mapping; correct or replace it"),
    ({**config(), "clusters": 3}, "config-0: clusters is not a list; correct it"),
    ({**config(), "users": [{"user": {}}]}, "config-0: users[0] has no name; give it one"),
    ({**config(), "current-context": 3}, "config-0: current-context is not a name"),
    (
        without(config(), "current-context"),
        "config-0: current-context is not set; set it, or choose one with --context (one)",
    ),
    (
        {**config(), "current-context": "two"},
        "config-0: current-context is 'two', but there is no such context; choose another (one)",
    ),
    (
        {**config(), "clusters": config("two")["clusters"]},
        "config-0: contexts[one].cluster is 'one', which does not exist; choose one of: two",
    ),
    (
        {**config(), "users": []},
        "config-0: contexts[one].user is 'one', which does not exist; choose one of: there are none",
    ),
    (
        config(server=""),
        "config-0: clusters[one]: server is missing; set it to the API server's address",
    ),
    (
        config(server="one:6443"),
        "config-0: contexts[one]: server 'one:6443' is not an address; write it as https://HOST:PORT",
    ),
    (
        config(server="http://far:80"),
        "config-0: contexts[one]: server http://far:80 would get the credential in clear text; "
        "use https, or say --insecure-skip-tls-verify",
    ),
    (
        config(**INSECURE),
        "config-0: clusters[one]: insecure-skip-tls-verify is set, but a file alone cannot enable it; "
        "set certificate-authority instead, or say --insecure-skip-tls-verify",
    ),
    (
        config(**{"certificate-authority-data": "%%%="}),
        "config-0: clusters[one]: certificate-authority-data is not base64 of a PEM text; copy it again, "
        "or give a file",
    ),
    (
        config(user={"auth-provider": {"name": "gcp"}}),
        "config-0: users[one]: auth-provider was removed from Kubernetes in 1.26; use the exec plugin of "
        "your provider instead",
    ),
    (
        config(user={"client-certificate": "c"}),
        "config-0: contexts[one]: client-certificate and client-key go together; one of them is missing",
    ),
    (
        config(user={"token": 7}),
        "config-0: users[one].user cannot be read: Expected `str`, got `int` - at `$.token`",
    ),
    (
        config(**{"proxy-url": "socks5://p:1"}),
        "config-0: contexts[one]: the proxy p is not an http or https proxy; use one of these",
    ),
]


@pytest.mark.parametrize(("document", "words"), BAD_FILES, ids=[words[:40] for _, words in BAD_FILES])
def test_a_fault_of_a_file_is_one_sentence_with_place_and_remedy(
    files: Files, document: Any, words: str
) -> None:
    files.use(document)
    assert files.refusal() == words


def test_faults_of_flags_and_surroundings(files: Files) -> None:
    assert files.refusal() == (
        "no API server is known: give a kubeconfig with --kubeconfig or KUBECONFIG, an address with "
        "--server, or run in a pod with a service account"
    )
    files.environ["KUBECONFIG"] = "/not/there"
    assert (
        files.refusal() == "KUBECONFIG names /not/there, and there is no such file; correct it, or unset it"
    )
    del files.environ["KUBECONFIG"]
    assert files.refusal(context="x") == "--context x: there is no kubeconfig; give one with --kubeconfig"
    missing = files.refusal(kubeconfig=files.folder / "no")
    assert missing == "the kubeconfig no does not exist; give another"
    assert files.refusal(server="https://a", client_key=Path("k")) == (
        "--client-certificate and --client-key go together: give both"
    )
    folder = files.refusal(kubeconfig=files.folder)
    assert folder.endswith("cannot be read (is a directory); give another")


def test_insecure_is_taken_from_the_flag_alone(files: Files) -> None:
    files.use(config(**INSECURE))
    assert files.find(insecure=True).insecure
    files.use(config())
    assert not files.find().insecure


def test_no_secret_is_in_a_repr_or_an_error(files: Files) -> None:
    user = {
        "token": "s3cr3t",
        "password": "s3cr3t",
        "client-key-data": base64.b64encode(b"s3cr3t").decode(),
        "client-certificate-data": base64.b64encode(b"public").decode(),
        "exec": {"command": "login", "args": ["s3cr3t"], "env": [{"name": "A", "value": "s3cr3t"}]},
    }
    files.use(config(user=user))
    assert "s3cr3t" not in repr(files.find())
    files.use("users:\n- name: a\n  user: {token: s3cr3t\n")
    assert "s3cr3t" not in files.refusal()


@pytest.mark.parametrize(
    ("server", "exempt", "proxied"),
    [
        ("https://10.1.2.3:6443", "", True),
        ("https://10.1.2.3:6443", "10.0.0.0/8", False),
        ("https://10.1.2.3:6443", "*", False),
        ("https://api.example.com", "example.com", False),
        ("https://api.example.com", ".example.com,other", False),
        ("https://api.example.com", "ample.com", True),
        ("https://127.0.0.1:6443", "", False),
        ("http://api.example.com", "", False),
    ],
)
def test_the_environment_names_a_proxy(server: str, exempt: str, proxied: bool) -> None:
    environ = {"HTTPS_PROXY": "http://proxy:1", "no_proxy": exempt}
    assert proxy_for(server, environ) == ("http://proxy:1" if proxied else "")
