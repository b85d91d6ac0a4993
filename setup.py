"""The part of the build that pyproject.toml cannot say: the cffi extension and the compiled BPF programs.

python setup.py build_ext --inplace     every extension beside its sources, as ./roost does
pip wheel .                             a wheel of the product: the engine, and the BPF objects (appliance/bpf/)
"""

import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py


class BuildPyAndBpf(build_py):
    """Compile ebpf/*/*.bpf.c into the wheel, where appliance.paths looks for them when there is no checkout."""

    def run(self) -> None:
        if not self.editable_mode:  # what earlier builds left there would be packed, too
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            out = Path(self.build_lib) / "appliance" / "bpf"
            subprocess.run([sys.executable, "ebpf/build.py", "--out", str(out), "ebpf"], check=True)


class BuildExtensions(build_ext):
    """Tests and the lab's simulator have extensions of their own, which are of use in a checkout alone."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = True  # as many extensions at a time as there are processors
        if not self.inplace:
            self.extensions = [extension for extension in self.extensions if extension.name.startswith("cext.")]


setup(
    cffi_modules=[
        "cext/build_engine.py:ffibuilder",
        "tests/inner/build_inner.py:ffibuilder",
        "appliance/lab/simulator/build_simulator.py:ffibuilder",
    ],
    cmdclass={"build_ext": BuildExtensions, "build_py": BuildPyAndBpf},
)
