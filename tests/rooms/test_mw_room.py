"""mw_room refuses what would leave a room out without a word."""

import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
if shutil.which("cmake") is None:
    pytest.skip("no cmake here", allow_module_level=True)


def configure(folder: pathlib.Path, call: str) -> subprocess.CompletedProcess:
    (folder / "a.cc").write_text("int a() { return 1; }\n")
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(x LANGUAGES CXX)\nadd_library(mw_flags INTERFACE)\n"
        "add_library(fmt::fmt INTERFACE IMPORTED)\nadd_library(absl::inlined_vector INTERFACE IMPORTED)\n"
        f"include({ROOT}/cmake/mw_room.cmake)\n{call}\n")
    return subprocess.run(["cmake", "-S", folder, "-B", folder / "build"], capture_output=True, text=True)


def test_a_room_whose_deps_are_not_there_stops_the_configuration(tmp_path):
    done = configure(tmp_path, "mw_room(base SOURCES a.cc)\nmw_room(ir SOURCES a.cc DEPS base bsae)")
    assert done.returncode != 0
    assert "mw_room(ir): DEPS name bsae, which is no room that is built before it" in " ".join(done.stderr.split())


def test_an_argument_without_a_keyword_stops_the_configuration(tmp_path):
    done = configure(tmp_path, "mw_room(base a.cc)")
    assert done.returncode != 0
    assert "mw_room(base): unknown arguments a.cc" in " ".join(done.stderr.split())
    (tmp_path / "again").mkdir()
    assert configure(tmp_path / "again", "mw_room(base SOURCES a.cc)").returncode == 0
