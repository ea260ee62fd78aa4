"""Credentials and TLS from options, variables and files; and what is told where they cannot be used."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.client import ClientOptions, Credentials, Tls
from rmq_core.client.access import ACCESS_SETTINGS, VARIABLES, Access, access_of, gather_settings
from rmq_formats.errors import OptionError

SECRET = "s3cret-of-the-tests"
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file that only its owner may read."""

    def written(name: str, text: str, mode: int = 0o600) -> str:
        file = tmp_path / name
        file.write_text(text)
        file.chmod(mode)
        return str(file)

    return written


def gathered(options: dict[str, str] | None = None, environ: dict[str, str] | None = None) -> Access:
    return access_of(gather_settings(options or {}, environ or {}))


def refusal(options: dict[str, str] | None = None, environ: dict[str, str] | None = None) -> str:
    """The one line that says what is wrong; it never shows the secret."""
    with pytest.raises(OptionError) as caught:
        gathered(options, environ)
    said = str(caught.value)
    assert SECRET not in said
    assert "\n" not in said
    return said


ALICE = Credentials("alice", SECRET, "token")
FILES = {
    "tools.yml": f"# the original's\naccessKey: alice\nsecretKey: '{SECRET}' # quoted\nsecurityToken: token\n",
    "access.yaml": f'---\naccessKey: "alice"\n\nsecretKey: {SECRET}   # not quoted\nsecurityToken: token\n',
    "access.toml": f'accessKey = "alice"\nsecretKey = "{SECRET}"\nsecurityToken = "token"\n',
    "key": f"AccessKey=alice\nSecretKey={SECRET}\nSecurityToken=token\n",
    "access.properties": f"accessKey=alice \nsecretKey = {SECRET}\nsecurityToken=token\n",
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_all_of_it(write: Write, name: str) -> None:
    assert gathered({"credentialsFile": write(name, FILES[name])}) == Access(ALICE)
    assert gathered({}, {"RMQ_CREDENTIALS_FILE": write(name, FILES[name])}) == Access(ALICE)


def test_without_anything_nothing_is_signed_and_connections_are_plain() -> None:
    assert gathered() == Access(None, None)
    assert gathered({}, {"RMQ_ACCESS_KEY": "", "RMQ_SECRET_KEY": "", "RMQ_USE_TLS": "false"}) == Access()


def test_an_option_goes_before_a_variable_and_that_before_the_file(write: Write) -> None:
    file = write("key", "accessKey=of-file\nsecretKey=of-file\nsecurityToken=of-file\n")
    environ = {"RMQ_CREDENTIALS_FILE": file, "RMQ_ACCESS_KEY": "of-environ", "RMQ_SECRET_KEY": "of-environ"}
    options = {"secretKeyFile": write("secret", "of-option\r\n")}
    assert gathered(options, environ).credentials == Credentials("of-environ", "of-option", "of-file")
    environ |= {"RMQ_CREDENTIALS_FILE": "/nowhere"}
    assert gathered({"credentialsFile": file}, environ).credentials == Credentials(
        "of-environ", "of-environ", "of-file"
    )


def test_an_empty_value_is_none_in_a_file_and_refused_elsewhere(write: Write) -> None:
    file = write("tools.yml", f"accessKey: alice\nsecretKey: {SECRET}\nsecurityToken:\nuseTLS: ''\n")
    assert gathered({"credentialsFile": file}) == Access(Credentials("alice", SECRET))
    assert refusal({"useTLS": "true", "tls.client.trustCertPath": ""}) == "tls.client.trustCertPath is empty"
    assert refusal({"accessKey": "a", "secretKeyFile": write("secret", "\n")}) == "secretKey is empty"
    not_text = {"RMQ_ACCESS_KEY": "a", "RMQ_SECRET_KEY": f"{SECRET}\udcff"}  # as Python has a byte that is no UTF-8
    assert refusal({}, not_text) == "secretKey is not UTF-8"


def test_each_setting_of_tls_has_its_place(write: Write) -> None:
    wanted = Tls(
        trust_cert_path="ca", cert_path="cert", key_path="key", key_password="pass", auth_server=False, server_name="n"
    )
    settings = {
        "useTLS": "true", "tls.client.trustCertPath": "ca", "tls.client.certPath": "cert", "tls.client.keyPath": "key",
        "tls.client.keyPassword": "pass", "tls.client.authServer": "false", "tls.client.serverName": "n",
    }  # fmt: skip
    assert gathered(settings).tls == wanted
    assert gathered({}, {VARIABLES[name]: value for name, value in settings.items()}).tls == wanted
    quoted = "".join(f'{name} = "{value}"\n' for name, value in settings.items())
    toml = quoted.replace('"true"', "true").replace('"false"', "false")
    for name, text in (("a.toml", toml), ("a.yml", quoted.replace(" = ", ": ")), ("a.conf", toml.replace('"', ""))):
        assert gathered({"credentialsFile": write(name, text)}).tls == wanted, name
    assert gathered({"useTLS": "true"}).tls == Tls()  # with the system's authorities, and verification
    assert Tls().auth_server


def test_half_of_a_pair_is_refused() -> None:
    assert refusal({"secretKey": SECRET}) == "secretKey requires accessKey: without both, requests cannot be signed"
    assert (
        refusal({}, {"RMQ_ACCESS_KEY": "a"}) == "accessKey requires secretKey: without both, requests cannot be signed"
    )
    assert refusal({"securityToken": SECRET}).startswith("securityToken requires accessKey")
    assert refusal({"tls.client.keyPassword": SECRET}).startswith("tls.client.keyPassword requires useTLS=true")
    assert refusal({"useTLS": "yes"}) == "useTLS cannot be 'yes': expected true or false"
    assert "exclude each other" in refusal({"secretKey": SECRET, "secretKeyFile": "x"})


@pytest.mark.parametrize("setting", ["credentialsFile", "secretKeyFile"])
def test_a_file_that_others_may_read_is_refused(write: Write, setting: str) -> None:
    for mode in (0o644, 0o640, 0o660, 0o604, 0o602):
        file = write("key", f"accessKey=a\nsecretKey={SECRET}\n", mode)
        if os.getuid() == 0 and mode == 0o640:
            continue  # a file of root's may be for a group
        problem = f"{file}: other users may read or change the file (mode {mode:04o}). Run chmod 600 on it."
        assert refusal({setting: file}) == problem
    for mode in (0o600, 0o400):
        assert gathered({"accessKey": "a", setting: write(f"key{mode}", f"secretKey={SECRET}\n", mode)}).credentials
    assert refusal({setting: "/nowhere"}) == "/nowhere: No such file or directory"
    assert refusal({setting: str(Path(file).parent)}).endswith(": Is a directory")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yml", f"secretKey:{SECRET}\n", "no flat YAML of access settings (line 1)"),
        ("a.yml", f"accessKey: a\n - {SECRET}\n", "no flat YAML of access settings (line 2)"),
        ("a.yml", f"secretKey: [{SECRET}]\n", "(line 1: put the value in quotes)"),
        ("a.yml", f'secretKey: "{SECRET}\\n"\n', "(line 1: simple quotes only)"),
        ("a.yml", f"secretKey: '{SECRET}' {SECRET}\n", "(line 1: simple quotes only)"),
        ("a.toml", f"secretKey = {SECRET}\n", "no flat TOML of access settings (at line 1, column 13)"),
        ("a.toml", f"[{SECRET}]\n[{SECRET}]\n", "no flat TOML of access settings (at line 2, column 21)"),
        ("a.toml", "secretKey = 17\n", "no flat TOML of access settings (a value is no text)"),
        ("key", f"secretKey=\\u{SECRET}\n", "no flat properties of access settings"),
        ("key", f"secretkey={SECRET}\n", "tls.client.serverName; secretkey is spelt secretKey"),
        ("key", f"secretKey={SECRET}\ncredentialsFile=x\n", "has something else than accessKey, secretKey, "),
        ("key", SECRET, "has something else than accessKey, secretKey, "),
        ("key", f"{SECRET}==", "has something else than accessKey, secretKey, "),
        ("a.yml", f"{SECRET}: x", "has something else than accessKey, secretKey, "),
        ("a.toml", f"'{SECRET}' = 'x'", "has something else than accessKey, secretKey, "),
        ("a.toml", f"'{SECRET}' = 17", "no flat TOML of access settings (a value is no text)"),
        ("key", "x" * 100_000, "more than 65536 bytes"),
    ],
)
def test_a_file_with_something_else_is_refused_without_its_contents(
    write: Write, name: str, text: str, said: str
) -> None:
    file = write(name, text)
    assert refusal({"credentialsFile": file}).startswith(f"{file}: ")
    assert said in refusal({"credentialsFile": file})


def test_bytes_that_are_no_text_are_refused(write: Write) -> None:
    file = write("key", "")
    Path(file).write_bytes(b"secretKey=\xff")
    assert refusal({"credentialsFile": file}) == f"{file}: not UTF-8"


@given(st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), min_size=1).map(str.strip).filter(bool))
def test_any_secret_can_be_written_in_each_form(tmp_path_factory: pytest.TempPathFactory, secret: str) -> None:
    directory = tmp_path_factory.getbasetemp()
    escaped = secret.replace("\\", "\\\\")
    texts = {"p.properties": f"accessKey=a\nsecretKey={escaped}\n"}
    if "'" not in secret:
        texts["p.toml"] = f"accessKey='a'\nsecretKey='{secret}'\n"
        if "\\" not in secret:
            texts["p.yml"] = f"accessKey: a\nsecretKey: '{secret}'\n"
    for name, text in texts.items():
        file = directory / name
        file.touch(0o600)
        file.write_text(text)
        assert gathered({"credentialsFile": str(file)}).credentials == Credentials("a", secret), name


def test_nothing_shows_a_secret() -> None:
    access = Access(ALICE, Tls(key_password=SECRET))
    for shown in (access, access.credentials, access.tls, ClientOptions(tls=access.tls)):
        assert SECRET not in f"{shown!r} {shown!s}"
        assert "token" not in repr(shown)


def test_the_page_has_each_setting_and_variable() -> None:
    page = (Path(__file__).parents[2] / "docs" / "credentials.md").read_text()
    rows = re.findall(r"^\| `([\w.]+)` \| (?:`([A-Z_]+)`)?", page, re.MULTILINE)
    assert dict(rows) == VARIABLES
    assert set(VARIABLES) == set(ACCESS_SETTINGS)
