# SPDX-License-Identifier: Apache-2.0
# make release fills in the version, the address and the sum. Spack 1.2 has audited, built and tested it,
# without network and with the machine's own Go and gcc as externals.

from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class SlurmMps(MakefilePackage):
    """The ranks of a Slurm job share GPUs through NVIDIA MPS: the programs of a user, which need no root."""

    homepage = "https://github.com/slurm-mps/slurm-mps"
    url = "@FOLDER@/@FILE@"

    license("Apache-2.0", checked_by="slurm-mps")

    version("@VERSION@", sha256="@SHA256@")

    depends_on("c", type="build")  # the tar has all modules of Go
    depends_on("go@1.26:", type="build")

    requires("platform=linux", msg="slurm-mps reads /proc")

    build_targets = ["parts"]

    @property
    def install_targets(self):
        return ["install-user", f"PREFIX={self.prefix}"]

    def setup_build_environment(self, env: EnvironmentModifications) -> None:
        env.set("GOTOOLCHAIN", "local")

    def test_programs(self):
        """each program prints its version"""
        for name in ["mpirun-wrap", "gpu-usage", "mps-tune", "mpsctl"]:
            with test_part(self, f"test_programs_{name}", purpose=f"{name} prints its version"):
                assert "slurm-mps" in which(join_path(self.prefix.bin, name))("--version", output=str)
