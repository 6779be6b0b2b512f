package policyfile

import (
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/slurm-mps/slurm-mps/site"
)

// factAttributes is the site file, an attribute a row.
var factAttributes = map[string]func(*hcl.Attribute, *site.Facts) error{
	"nvml_library": func(a *hcl.Attribute, f *site.Facts) (err error) {
		f.NVMLLibrary, err = absolutePath(a)
		return err
	},
	"mps_control": func(a *hcl.Attribute, f *site.Facts) (err error) {
		f.Control, err = absolutePath(a)
		return err
	},
	"library_path": func(a *hcl.Attribute, f *site.Facts) (err error) {
		f.LibraryPath, err = text(a)
		return err
	},
	"gres_conf": func(a *hcl.Attribute, f *site.Facts) (err error) {
		f.GresConf, err = absolutePath(a)
		return err
	},
	"prolog_deadline": func(a *hcl.Attribute, f *site.Facts) (err error) {
		f.PrologDeadline, err = durationIn(a, time.Second, time.Hour)
		return err
	},
	"epilog_deadline": func(a *hcl.Attribute, f *site.Facts) (err error) {
		f.EpilogDeadline, err = durationIn(a, 5*time.Second, time.Hour)
		return err
	},
}

// ParseFacts reads the site's facts over the defaults given.
func ParseFacts(source []byte, name string, facts site.Facts) (site.Facts, error) {
	file, err := parse(source, name)
	if err != nil {
		return facts, err
	}
	schema := &hcl.BodySchema{}
	for attribute := range factAttributes {
		schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: attribute})
	}
	content, diags := file.Body.Content(schema)
	if diags.HasErrors() {
		return facts, complaint(diags)
	}
	for attribute, attr := range content.Attributes {
		if err := factAttributes[attribute](attr, &facts); err != nil {
			return facts, err
		}
	}
	return facts, nil
}

func absolutePath(a *hcl.Attribute) (string, error) {
	path, err := text(a)
	if err != nil {
		return "", err
	}
	if path == "" || path[0] != '/' {
		return "", at(a.Expr.Range(), "Not an absolute path: %s is a path from /, not %q", a.Name, path)
	}
	return path, nil
}
