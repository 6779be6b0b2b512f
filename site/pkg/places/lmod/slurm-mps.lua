-- SPDX-License-Identifier: Apache-2.0
-- Loaded and unloaded by Lmod 8.6. Put this file into a folder of MODULEPATH as slurm-mps/VERSION.lua, and the programs
-- below root, by make install-user PREFIX=/opt/slurm-mps/VERSION.
local root = pathJoin("/opt/slurm-mps", myModuleVersion())

whatis("Name: " .. myModuleName())
whatis("Version: " .. myModuleVersion())
whatis("Description: the ranks of a Slurm job share GPUs through NVIDIA MPS")
whatis("URL: https://github.com/slurm-mps/slurm-mps")
help([[srun mpirun-wrap --own ./app runs the ranks of ./app under MPS. See man mpirun-wrap.]])

prepend_path("PATH", pathJoin(root, "bin"))
prepend_path("MANPATH", pathJoin(root, "share/man"))
