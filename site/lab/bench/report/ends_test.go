package main

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const cancelledHead = "ranks,work,by,signals,trial,gpu,neighbours alive,of,ms to start,ms to the end,ms to a neighbour's error\n"

const crashedHead = "signals,died by,ranks,work,trial,neighbours alive,ms to a neighbour's error,files held,ms until held,ms that the wrapper stayed\n"

// trialFile is a file of trials in a folder of its own.
func trialFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trials.csv")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAMalformedFileOfTrialsIsOneSentence(t *testing.T) {
	good := "1,1 x 20 ms,scancel of the step,protect,0,0,2,2,425,19,0\n"
	crash := "protect,SIGKILL,1,1 x 400 ms,0,true,0,2,1,6359\n"
	for _, c := range []struct {
		content string
		take    func(*row) trial
		want    string
	}{
		{"", cancelledTrial, ": it has no trials"},
		{cancelledHead, cancelledTrial, ": it has no trials"},
		{cancelledHead + good + "1,1 x 20 ms,scancel of the step,prot", cancelledTrial, ", line 3: " + csv.ErrFieldCount.Error()},
		{cancelledHead + good + strings.Replace(good, "scancel", `scan"cel`, 1), cancelledTrial, ", line 3: " + csv.ErrBareQuote.Error()},
		{"# a remark, of two parts\n" + cancelledHead + strings.Replace(good, ",19,", ",1.9,", 1), cancelledTrial, `, line 3: "ms to the end" is "1.9" and not a number`},
		{cancelledHead + strings.Replace(good, "1 x 20 ms", "1 x 20 ms or so", 1), cancelledTrial, `, line 2: "work" is "1 x 20 ms or so" and not such as 1 x 20 ms`},
		{cancelledHead + strings.Replace(good, "scancel of the step", "hand", 1), cancelledTrial, `, line 2: "hand" is no way to cancel that the tables have`},
		{cancelledHead + strings.Replace(good, "protect", "protected", 1), cancelledTrial, `, line 2: "signals" is "protected" and not one of protect, pass`},
		{cancelledHead + good, crashedTrial, `, line 2: there is no column "died by"`},
		{crashedHead + crash + strings.Replace(crash, "true", "2", 1), crashedTrial, `, line 3: "neighbours alive" is "2" and not one of true, false`},
	} {
		path := trialFile(t, c.content)
		_, err := readTrials(path, c.take)
		if want := "cannot read " + path + c.want; err == nil || err.Error() != want {
			t.Errorf("%q: %v; want %s", c.content, err, want)
		}
	}
}

// A row takes its trials from wherever they stand in the file, and its time is the median of all of them; a trial in
// which one of two neighbours died is none in which they lived.
func TestCancelledRanksOfAFile(t *testing.T) {
	cancelled := func(ranks int, work, by, signals string, alive, ms int) string {
		return fmt.Sprintf("%d,%s,%s,%s,0,0,%d,2,100,%d,0\n", ranks, work, by, signals, alive, ms)
	}
	const term, kill = "scancel --signal=TERM of the step", "scancel of the step"
	all, err := readTrials(trialFile(t, cancelledHead+
		cancelled(8, "1 x 20 ms", "SIGTERM to mpirun", "protect", 2, 2000)+
		cancelled(1, "200 x 5 ms", term, "protect", 2, 600)+
		cancelled(1, "1 x 5000 ms", term, "protect", 2, 700)+
		cancelled(1, "1 x 5000 ms", term, "pass", 0, 200)+
		"# a remark\n"+
		cancelled(1, "1 x 5000 ms", term, "protect", 1, 900)+
		cancelled(8, "1 x 400 ms", kill, "protect", 0, 500)+
		cancelled(1, "1 x 20 ms", kill, "protect", 2, 20)+
		cancelled(1, "1 x 400 ms", kill, "protect", 2, 20)), cancelledTrial)
	if err != nil {
		t.Fatal(err)
	}
	e := ends{cancelled: all}
	want := `| cancelled | work in flight | by | protect | pass |
|---|---|---|---|---|
| 1 rank | 5 s | ` + "`scancel --signal=TERM JOB.STEP`" + ` | 1 of 2, 0.80 s | 0 of 1, 0.20 s |
| 1 rank | 200 x 5 ms | the same | 1 of 1, 0.60 s | not run |
| 8 ranks | 20 ms | SIGTERM to ` + "`mpirun`" + ` | 1 of 1, 2.00 s | not run |

Under ` + "`protect` 3 of 4, under `pass` 0 of 1."
	if got := e.warned(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	want = `| work in flight | by | protect, 1 rank | protect, 8 ranks |
|---|---|---|---|
| 20 ms | ` + "`scancel JOB.STEP`" + ` | 1 of 1 | not run |
| 400 ms | the same | 1 of 1 | 0 of 1 |
`
	if got := e.unwarned(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestCrashedRanksOfAFile(t *testing.T) {
	all, err := readTrials(trialFile(t, "# a remark\n"+crashedHead+
		"protect,_exit(1),1,1 x 400 ms,0,true,0,2,1,3040\n"+
		"protect,SIGKILL,8,1 x 400 ms,0,true,0,16,16,5197\n"+
		"protect,SIGSEGV,1,1 x 400 ms,0,false,30,2,1,6307\n"+
		"pass,SIGKILL,1,1 x 50 ms,0,false,90,0,0,0\n"+
		"protect,SIGKILL,1,1 x 400 ms,0,true,0,2,1,6359\n"), crashedTrial)
	if err != nil {
		t.Fatal(err)
	}
	want := `| died by | work in flight | protect | pass |
|---|---|---|---|
| SIGKILL | 50 ms | not run | 0 of 1 |
| SIGKILL, SIGSEGV | 400 ms | 1 of 2 | not run |
| ` + "`_exit(1)`" + ` | 400 ms | 1 of 1 | not run |
| SIGKILL of 8 ranks at once | 400 ms | 1 of 1 | not run |

Under ` + "`protect` 3 of 4, under `pass` 0 of 1."
	if got := (ends{crashed: all}).crashTable(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
