// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurm-mps/slurm-mps/site/sim/must"
	"github.com/slurm-mps/slurm-mps/site/sim/node"
)

// nvml.h: GPM is "for Hopper or newer fully supported devices".
func TestGPMIsForHopper(t *testing.T) {
	for _, c := range []struct {
		model node.Model
		want  uint32
	}{{node.A100SXM80, 0}, {node.L40S, 0}, {node.H200, 1}, {node.B200, 1}, {node.H200.Cut(node.H100Slice1), 0}} {
		_, lib := opened(t, c.model)
		device, ret := lib.DeviceGetHandleByIndex(0)
		ok(t, ret)
		support, ret := lib.GpmQueryDeviceSupport(device)
		ok(t, ret)
		want(t, c.model.Name, support.IsSupportedDevice, c.want)
		sample, ret := lib.GpmSampleAlloc()
		ok(t, ret)
		want(t, "sample of "+c.model.Name, lib.GpmSampleGet(device, sample), map[uint32]nvml.Return{0: nvml.ERROR_NOT_SUPPORTED, 1: nvml.SUCCESS}[c.want])
		ok(t, lib.GpmSampleFree(sample))
	}
}

// A metric is computed over the time between two samples. Each metric has its own answer.
func TestGPMMetrics(t *testing.T) {
	made, lib := opened(t, node.H200)
	gpu := made.Node.GPU(0)
	device, _ := lib.DeviceGetHandleByIndex(0)
	first, ret := lib.GpmSampleAlloc()
	ok(t, ret)
	second, ret := lib.GpmSampleAlloc()
	ok(t, ret)
	ask := &nvml.GpmMetricsGetType{NumMetrics: 4, Sample1: first, Sample2: second}
	for i, metric := range []nvml.GpmMetricId{nvml.GPM_METRIC_GRAPHICS_UTIL, nvml.GPM_METRIC_SM_UTIL, nvml.GPM_METRIC_DRAM_BW_UTIL, nvml.GPM_METRIC_FP64_UTIL} {
		ask.Metrics[i].MetricId = uint32(metric)
	}
	want(t, "metrics of samples that hold nothing", lib.GpmMetricsGet(ask), nvml.ERROR_INVALID_ARGUMENT)
	ok(t, lib.GpmSampleGet(device, first))
	time.Sleep(2 * time.Millisecond)
	ok(t, lib.GpmSampleGet(device, second))
	for name, percent := range map[string]string{"gpm/1": "94.5", "gpm/10": "-1"} {
		must.OK(t, gpu.Set(name, percent))
	}
	ok(t, lib.GpmMetricsGet(ask))
	want(t, "utilisation", ask.Metrics[0].Value, 94.5)
	want(t, "an idle GPU's SMs", ask.Metrics[1].Value, 0)
	for i, answer := range []nvml.Return{nvml.SUCCESS, nvml.SUCCESS, nvml.ERROR_UNKNOWN, nvml.ERROR_NOT_SUPPORTED} {
		want(t, "the metric's own answer", nvml.Return(ask.Metrics[i].NvmlReturn), answer)
	}
	ask.Metrics[0].MetricId = 0
	want(t, "V1", lib.GpmMetricsGetV(ask).V1(), nvml.SUCCESS)
	want(t, "no such metric", nvml.Return(ask.Metrics[0].NvmlReturn), nvml.ERROR_NOT_SUPPORTED)
	must.OK(t, gpu.Fail("nvmlGpmSampleGet", int(nvml.ERROR_GPU_IS_LOST), 1))
	want(t, "a sample of a lost GPU", lib.GpmSampleGet(device, first), nvml.ERROR_GPU_IS_LOST)
	ok(t, lib.GpmSampleFree(first))
	ok(t, lib.GpmSampleFree(second))
}
