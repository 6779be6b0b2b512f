module github.com/slurm-mps/slurm-mps/site/lab/bench

go 1.26.0

replace github.com/slurm-mps/slurm-mps => ../../..

require (
	github.com/slurm-mps/slurm-mps v0.0.0
	golang.org/x/sys v0.49.0
)

require github.com/NVIDIA/go-nvml v0.13.4-0 // indirect
