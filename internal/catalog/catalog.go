// Package catalog owns which tools a list has and what tools are called elsewhere: the toolsets and profiles that an address can ask for, and the
// names of four other compute services with the tool here that does the same.
//
// It is data and how to read it. The package runs nothing; faces show what it says.
package catalog

import "slices"

// Old is one name from elsewhere. Tool is empty where nothing here does it; Note then says what there is instead.
type Old struct {
	Name   string
	Action string // the value of the argument action that this row is for; empty for every other
	Tool   string
	Verb   string // the action of Tool, where that is a shared one
	Note   string // follows the tool's name: how to call it, or what differs
}

// Find gives the row of a name, the one for the action where there is one.
func Find(name, action string) (Old, bool) {
	var found Old
	ok := false
	for _, o := range old {
		if o.Name != name {
			continue
		}
		if o.Action == action {
			return o, true
		}
		if o.Action == "" {
			found, ok = o, true
		}
	}
	return found, ok
}

// All gives every row.
func All() []Old { return slices.Clone(old) }
