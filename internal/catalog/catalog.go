// Package catalog owns what the tools are called elsewhere: the names of four other compute services, and which tool here does the same.
//
// An agent that has learnt one of those names is told the right one. The package runs nothing and knows no operation; that its targets exist is tested.
package catalog

// Old is one name from elsewhere. Tool is empty where nothing here does it; Note then says what there is instead.
type Old struct {
	Name   string
	Action string // the value of the argument action that this row is for; empty for every other
	Tool   string
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
func All() []Old { return append([]Old(nil), old...) }
