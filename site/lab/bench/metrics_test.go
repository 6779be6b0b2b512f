// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// metrics is the output of mpsctl metrics that a test of package mpsctl holds: each family, with names that must be
// escaped. The linter is Prometheus' own. It is used here, so that no program links it.
const metrics = "../../../cmd/mpsctl/testdata/metrics.prom"

func TestMetricsAreInPrometheusForm(t *testing.T) {
	file, err := os.Open(metrics)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	problems, err := promlint.New(file).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	bad := "# TYPE slurm_mps_x counter\nslurm_mps_x 1\n"
	if problems, err := promlint.New(strings.NewReader(bad)).Lint(); err != nil || len(problems) == 0 {
		t.Errorf("the linter finds nothing wrong in %q: %v", bad, err)
	}
}
