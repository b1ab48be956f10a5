"""Settings: sources, precedence, unknown keys, bad values, and the page that documents them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zlinkpy.execution
import zlinkpy.runtime.settings as module
from zlinkpy.errors import ConfigurationError
from zlinkpy.execution import JobQueueOptions, JobQueueProfile
from zlinkpy.location.options import LocationOptions
from zlinkpy.runtime.settings import (
    ClientServerSettings,
    LocationSettings,
    LogLevel,
    MeshSettings,
    Settings,
    setting_keys,
)

DOCUMENT = Path(__file__).parents[3] / "docs" / "settings.md"

EVERYTHING = """
# The whole tree.
location_store = "redis://localhost"
application_version = 12
default_request_timeout = 5
shutdown_deadline = 20.5

[job_queue]
profile = "compact"
max = 500
pause_percent = 90
resume_percent = 10

[location]
polling_interval = 2
route_cache_max_age = 0

[log]
level = "debug"

[mesh.play]
listen = "tcp://0.0.0.0:7001"
advertise_host = "play.example"
rid_prefix = "play"
peers = [
    "tcp://10.0.0.5:7001",
    "tcp://10.0.0.6:7001",  # the other one
]
default_request_timeout = 0.5
placement_weight = 0
max_message_bytes = 3_000_000

[mesh."tic.tac"]
listen = "tcp://127.0.0.1:0"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "zlink.toml"


def load(file: Path, text: str, **arguments: Any) -> Settings:
    file.write_text(text)
    return Settings.load(file, **({"environ": {}} | arguments))


def problem(file: Path, text: str = "", **arguments: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(file, text, **arguments)
    return str(caught.value)


def test_nothing_set_is_nothing_but_none() -> None:
    settings = Settings.load(environ={})
    assert settings == Settings()
    assert settings.mesh == {}
    assert settings.location_store is None
    assert settings.job_queue.over(JobQueueOptions()) == JobQueueOptions()
    assert settings.location.over(LocationOptions()) == LocationOptions()


def test_every_key_of_a_file_is_typed(file: Path) -> None:
    settings = load(file, EVERYTHING)
    assert (settings.location_store, settings.application_version) == ("redis://localhost", 12)
    assert (settings.default_request_timeout, settings.shutdown_deadline) == (5.0, 20.5)
    assert settings.log.level is LogLevel.DEBUG
    assert settings.mesh["play"] == MeshSettings(
        listen="tcp://0.0.0.0:7001",
        advertise_host="play.example",
        rid_prefix="play",
        peers=("tcp://10.0.0.5:7001", "tcp://10.0.0.6:7001"),
        default_request_timeout=0.5,
        placement_weight=0,
        max_message_bytes=3_000_000,
    )
    assert settings.mesh["tic.tac"] == MeshSettings(listen="tcp://127.0.0.1:0")
    assert settings.job_queue.over(JobQueueOptions()) == JobQueueOptions(
        profile=JobQueueProfile.COMPACT, max_queued_application_jobs=500, pause_percent=90, resume_percent=10
    )
    options = settings.location.over(LocationOptions(owner_lease_ttl=40))
    assert options == LocationOptions(owner_lease_ttl=40, polling_interval=2, route_cache_max_age=0)


def test_what_code_says_stays_where_nobody_sets_the_key(file: Path) -> None:
    settings = load(file, "[job_queue]\npause_percent = 70\n")
    code = JobQueueOptions(profile=JobQueueProfile.THROUGHPUT, resume_percent=5)
    assert settings.job_queue.over(code) == attrs.evolve(code, pause_percent=70)


def test_overrides_beat_the_environment_and_that_beats_the_file(file: Path) -> None:
    text = '[mesh.play]\nlisten = "file"\nrid_prefix = "file"\nadvertise_host = "file"\nplacement_weight = 3\n'
    environ = {"ZLINK_MESH_PLAY_LISTEN": "env", "ZLINK_MESH_PLAY_RID_PREFIX": "env"}
    settings = load(file, text, environ=environ, overrides={"mesh.play.listen": "flag"})
    mesh = settings.mesh["play"]
    assert (mesh.listen, mesh.rid_prefix, mesh.advertise_host) == ("flag", "env", "file")
    assert [settings.origin(f"mesh.play.{key}") for key in ("listen", "rid_prefix", "advertise_host", "peers")] == [
        "override",
        "environment variable ZLINK_MESH_PLAY_RID_PREFIX",
        f"{file}:4",
        None,
    ]


def test_the_processs_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZLINK_LOCATION_STORE", "memory://")
    assert Settings.load().location_store == "memory://"


def test_each_variable_sets_its_key() -> None:
    environ = {
        "ZLINK_LOCATION_STORE": "memory://",
        "ZLINK_APPLICATION_VERSION": " 7 ",
        "ZLINK_DEFAULT_REQUEST_TIMEOUT": "1.5",
        "ZLINK_SHUTDOWN_DEADLINE": "3",
        "ZLINK_JOB_QUEUE_PROFILE": "LOW_LATENCY",
        "ZLINK_JOB_QUEUE_MAX": "9",
        "ZLINK_LOCATION_OWNER_LEASE_TTL": "40",
        "ZLINK_LOG_LEVEL": "Warning",
        "ZLINK_MESH_PLAY_LISTEN": "tcp://*:1",
        "ZLINK_MESH_PLAY_PEERS": "tcp://a:1, tcp://b:2",
        "ZLINK_MESH_API_V2_PEERS": "",
        "ZLINK_MESH_API_V2_DEFAULT_REQUEST_TIMEOUT": "4",
        "PATH": "/bin",
        "zlink_log_level": "ignored",
    }
    settings = Settings.load(environ=environ)
    assert settings == Settings(
        location_store="memory://",
        application_version=7,
        default_request_timeout=1.5,
        shutdown_deadline=3.0,
        job_queue=module.JobQueueSettings(profile=JobQueueProfile.LOW_LATENCY, max=9),
        location=LocationSettings(owner_lease_ttl=40.0),
        log=module.LogSettings(level=LogLevel.WARNING),
        mesh={
            "play": MeshSettings(listen="tcp://*:1", peers=("tcp://a:1", "tcp://b:2")),
            "api_v2": MeshSettings(peers=(), default_request_timeout=4.0),
        },
    )


def test_a_variable_finds_the_mesh_it_can_only_spell_in_capitals(file: Path) -> None:
    environ = {"ZLINK_MESH_TIC_TAC_LISTEN": "x"}
    assert list(Settings.load(environ=environ, meshes=["Tic-Tac"]).mesh) == ["Tic-Tac"]
    assert list(load(file, '[mesh."tic tac"]\nrid_prefix = "p"', environ=environ).mesh) == ["tic tac"]
    assert list(Settings.load(environ=environ).mesh) == ["tic_tac"]


def test_a_variable_that_fits_two_meshes_is_refused(file: Path) -> None:
    text = problem(file, environ={"ZLINK_MESH_A_B_LISTEN": "x"}, meshes=["a-b", "a.b", "a-b"])
    assert "ZLINK_MESH_A_B_LISTEN fits both 'a-b' and 'a.b'" in text


def test_overrides_take_text_and_typed_values_and_names_with_dots() -> None:
    overrides = {
        "job_queue.max": "12",
        "default_request_timeout": 2,
        "mesh.tic.tac.peers": ["tcp://a:1"],
        "mesh.play.peers": "tcp://a:1,tcp://b:1",
    }
    settings = Settings.load(environ={}, overrides=overrides)
    assert settings.job_queue.max == 12
    assert settings.default_request_timeout == 2.0
    assert settings.mesh["tic.tac"].peers == ("tcp://a:1",)
    assert settings.mesh["play"].peers == ("tcp://a:1", "tcp://b:1")


@pytest.mark.contract("LV-04")
@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("\n[liveness]\ninterval = 5\n", 3, "liveness.interval"),
        ("liveness.interval = 5", 1, "liveness.interval"),
        ("[mesh.play]\n# comment\npeer_deadline = 15", 3, "mesh.play.peer_deadline"),
        ("[mesh.play]\n\ncheck_interval = 5", 3, "mesh.play.check_interval"),
        ("[mesh.play.liveness]\ndeadline = 15", 2, "mesh.play.liveness.deadline"),
        ("peer_deadline = 15", 1, "peer_deadline"),
        ("[location]\npeer_deadline = 15", 2, "location.peer_deadline"),
    ],
)
def test_a_key_for_liveness_is_an_unknown_key(file: Path, text: str, line: int, key: str) -> None:
    assert problem(file, text).startswith(f"{file}:{line}: unknown key '{key}'; the nearest known key is '")


@pytest.mark.contract("LV-04")
@pytest.mark.parametrize("name", ["LIVENESS_INTERVAL", "MESH_PLAY_PEER_DEADLINE", "PEER_DEADLINE", "CHECK_INTERVAL"])
def test_a_variable_for_liveness_is_an_unknown_key(file: Path, name: str) -> None:
    assert f"environment variable ZLINK_{name}: unknown key 'ZLINK_{name}'" in problem(
        file, environ={f"ZLINK_{name}": "5"}
    )
    key = name.lower().replace("mesh_play_", "mesh.play.").replace("liveness_", "liveness.")
    assert f"override: unknown key '{key}'" in problem(file, overrides={key: 5})


@pytest.mark.contract("LV-03")
def test_no_setting_names_the_liveness_times() -> None:
    option_types = [
        cls for _, cls in inspect.getmembers(zlinkpy.execution, attrs.has) if cls.__name__.endswith("Options")
    ]
    assert option_types == [JobQueueOptions]
    names = [name for key in setting_keys() for name in (key.key, key.variable)]
    names += [field.name for cls in [*option_types, LocationOptions] for field in attrs.fields(cls)]
    assert len(names) > 60
    forbidden = re.compile(r"liveness|probe|heartbeat|beacon|check_?interval|peer_?(deadline|timeout)", re.IGNORECASE)
    assert not [name for name in names if forbidden.search(name)]


@pytest.mark.parametrize(
    ("text", "written", "nearest"),
    [
        ("locaton_store = 1", "key 'locaton_store'", "'location_store'"),
        ("[job_queue]\nmaximum = 1", "key 'job_queue.maximum'", "'job_queue.max'"),
        ("[mesh.play]\nlistne = 1", "key 'mesh.play.listne'", "'mesh.play.listen'"),
        ("[log]\nlevle = 1", "key 'log.levle'", "'log.level'"),
        ("[jobqueue]", "section 'jobqueue'", "'job_queue.max'"),
        ("[mesh.play.listen]", "section 'mesh.play.listen'", ""),
        ("mesh = 5", "key 'mesh'", ""),
        ("location = true", "key 'location'", "'location_store'"),
        ("[[mesh]]\nlisten = 'x'", "key 'mesh'", ""),
        ("[mesh.'']\nlisten = 'x'", "key 'mesh..listen'", ""),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(file: Path, text: str, written: str, nearest: str) -> None:
    found = problem(file, text)
    if written == "section 'mesh.play.listen'":
        assert "mesh.play.listen is {}; it must be an endpoint" in found
    else:
        assert f"unknown {written}; the nearest known key is {nearest}" in found


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("ZLINK_LOCATIONSTORE", "ZLINK_LOCATION_STORE"),
        ("ZLINK_MESH_PLAY_LISTN", "ZLINK_MESH_PLAY_LISTEN"),
        ("ZLINK_MESH_PLAY_PEER", "ZLINK_MESH_PLAY_PEERS"),
    ],
)
def test_an_unknown_variable_is_named_with_the_nearest_known_one(file: Path, variable: str, nearest: str) -> None:
    found = problem(file, environ={variable: "x"})
    assert found.startswith(f"environment variable {variable}: unknown key '{variable}'; ")
    assert f"the nearest known key is '{nearest}'" in found


@pytest.mark.parametrize("text", ["[job_queue]\n", "[mesh.play]\n# listen = 'x'\n", "[mesh]\n", "[location]\n[log]\n"])
def test_a_section_with_everything_commented_out_is_empty_and_no_error(file: Path, text: str) -> None:
    assert load(file, text) == Settings()


@pytest.mark.parametrize(
    ("line", "key", "value", "expects"),
    [
        ("location_store = ''", "location_store", "''", "a store URL"),
        ("location_store = 5", "location_store", "5", "a store URL"),
        ("application_version = -1", "application_version", "-1", "a whole number in 0.."),
        ("application_version = true", "application_version", "True", "a whole number in 0.."),
        ("application_version = 1.0", "application_version", "1.0", "a whole number in 0.."),
        ("default_request_timeout = 0", "default_request_timeout", "0", "seconds above 0 and at most 2147483.647"),
        ("default_request_timeout = nan", "default_request_timeout", "nan", "seconds above 0"),
        ("default_request_timeout = 2147483.648", "default_request_timeout", "2147483.648", "at most 2147483.647"),
        ("default_request_timeout = '5'", "default_request_timeout", "'5'", "seconds above 0"),
        ("shutdown_deadline = inf", "shutdown_deadline", "inf", "seconds above 0"),
        (
            "job_queue.profile = 'huge'",
            "job_queue.profile",
            "'huge'",
            "one of compact, low_latency, balanced, throughput",
        ),
        ("job_queue.profile = 128", "job_queue.profile", "128", "one of compact"),
        ("job_queue.max = 0", "job_queue.max", "0", "a whole number in 1..2147483647"),
        ("job_queue.max = 2147483648", "job_queue.max", "2147483648", "in 1..2147483647"),
        ("job_queue.pause_percent = 101", "job_queue.pause_percent", "101", "in 1..100"),
        ("job_queue.resume_percent = -1", "job_queue.resume_percent", "-1", "in 0..99"),
        ("location.polling_interval = 0", "location.polling_interval", "0", "seconds above 0"),
        ("location.route_cache_max_age = -1", "location.route_cache_max_age", "-1", "seconds, 0 for off"),
        ("log.level = 'loud'", "log.level", "'loud'", "one of debug, info, warning, error, critical"),
        ("mesh.play.peers = 'a'", "mesh.play.peers", "'a'", "a list of endpoints"),
        ("mesh.play.peers = ['']", "mesh.play.peers", "['']", "a list of endpoints"),
        ("mesh.play.peers = [1]", "mesh.play.peers", "[1]", "a list of endpoints"),
        ("mesh.play.placement_weight = 10001", "mesh.play.placement_weight", "10001", "in 0..10000"),
        ("mesh.play.max_message_bytes = 2097151", "mesh.play.max_message_bytes", "2097151", "0 for no bound, or"),
        ("mesh.play.max_message_bytes = 4294967296", "mesh.play.max_message_bytes", "4294967296", "in 2097152..4294"),
        ("mesh.play.max_message_bytes = -1", "mesh.play.max_message_bytes", "-1", "0 for no bound, or"),
        ("mesh.play.max_message_bytes = false", "mesh.play.max_message_bytes", "False", "0 for no bound, or"),
        ("mesh.play.max_message_bytes = 0.0", "mesh.play.max_message_bytes", "0.0", "0 for no bound, or"),
    ],
)
def test_a_bad_value_is_named_with_key_place_and_expectation(
    file: Path, line: str, key: str, value: str, expects: str
) -> None:
    found = problem(file, f"\n{line}\n")
    assert found.startswith(f"{file}:2: {key} is {value}; it must be ")
    assert expects in found


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ZLINK_APPLICATION_VERSION", "x"),
        ("ZLINK_APPLICATION_VERSION", "1.5"),
        ("ZLINK_DEFAULT_REQUEST_TIMEOUT", "soon"),
        ("ZLINK_DEFAULT_REQUEST_TIMEOUT", "nan"),
        ("ZLINK_DEFAULT_REQUEST_TIMEOUT", ""),
        ("ZLINK_LOCATION_STORE", ""),
        ("ZLINK_MESH_PLAY_PEERS", "a,,b"),
        ("ZLINK_LOG_LEVEL", "10"),
    ],
)
def test_a_bad_variable_is_named_with_its_value(file: Path, variable: str, value: str) -> None:
    found = problem(file, environ={variable: value})
    assert found.startswith(f"environment variable {variable}: ")
    assert f" is {value!r}; it must be " in found


def test_a_key_inside_an_inline_table_has_the_line_of_the_table(file: Path) -> None:
    text = problem(file, "\n\nmesh = {play = {placement_weight = -1}}")
    assert text.startswith(f"{file}:3: mesh.play.placement_weight is -1")


def test_files_that_cannot_be_read(file: Path, tmp_path: Path) -> None:
    assert "not TOML" in problem(file, "a = ")
    assert "not TOML" in problem(file, "a = 1\na = 2")
    for path in (tmp_path / "missing.toml", tmp_path):
        with pytest.raises(ConfigurationError, match=f"settings file {re.escape(str(path))}: "):
            Settings.load(path, environ={})
    file.write_bytes(b"a = '\xff'")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        Settings.load(str(file), environ={})


def test_location_settings_are_the_location_options() -> None:
    names = [field.name for field in attrs.fields(LocationOptions)]
    assert [field.name for field in attrs.fields(LocationSettings)] == names
    odd = {name: 0.25 + index for index, name in enumerate(names)}
    assert LocationSettings(**odd).over(LocationOptions()) == LocationOptions(**odd)


@given(st.sampled_from(setting_keys()), st.sampled_from(["x", "", "1", "true", "1e400", "-1", "a,b"]))
def test_any_text_for_any_variable_is_a_value_or_a_configuration_error(key: module.SettingKey, text: str) -> None:
    variable = key.variable.replace("<NAME>", "PLAY")
    name = key.key.replace("<name>", "play")
    try:
        settings = Settings.load(environ={variable: text})
    except ConfigurationError as error:
        assert name in str(error)  # noqa: PT017
    else:
        assert settings.origin(name) == f"environment variable {variable}"


def rows() -> list[str]:
    return [f"| `{key.key}` | `{key.variable}` | {key.expects} | {key.meaning} |" for key in setting_keys()]


def test_the_page_lists_every_key_as_it_is() -> None:
    written = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    assert written == rows()


def test_the_example_of_the_page_works(file: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert example is not None
    assert load(file, example[1]).mesh["play"].listen == "tcp://0.0.0.0:7001"


def test_a_channel_s_table_is_read_from_every_source(file: Path) -> None:
    text = '[client_server.orders]\nlisten = "tcp://0.0.0.0:7101"\nservers = ["tcp://10.0.0.6:7101"]\nweight = 3\n'
    environ = {
        "ZLINK_CLIENT_SERVER_ORDERS_WEIGHT": "7",
        "ZLINK_CLIENT_SERVER_BACK_OFFICE_SERVERS": "tcp://a:1,tcp://b:2",
    }
    overrides = {"client_server.orders.max_message_bytes": "0", "client_server.a.b.rid_prefix": "x"}
    settings = load(file, text, environ=environ, overrides=overrides, client_servers=["back-office"])
    assert settings.client_server == {
        "orders": ClientServerSettings(
            listen="tcp://0.0.0.0:7101", servers=("tcp://10.0.0.6:7101",), weight=7, max_message_bytes=0
        ),
        "back-office": ClientServerSettings(servers=("tcp://a:1", "tcp://b:2")),
        "a.b": ClientServerSettings(rid_prefix="x"),
    }
    assert settings.mesh == {}


def test_the_nearest_key_of_a_channel_is_named(file: Path) -> None:
    assert "'client_server.orders.servers'" in problem(file, '[client_server.orders]\nserver = "x"\n')
    text = problem(file, environ={"ZLINK_CLIENT_SERVER_ORDERS_WIGHT": "1"})
    assert "'ZLINK_CLIENT_SERVER_ORDERS_WEIGHT'" in text
