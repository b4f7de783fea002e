package op

// Words names the hints that are set, in a fixed order: read, write, idempotent, destructive, creates, wakes, openWorld.
func (h Hints) Words() []string {
	var words []string
	for i, w := range []string{"read", "write", "idempotent", "destructive", "creates", "wakes", "openWorld"} {
		if h.Has(1 << i) {
			words = append(words, w)
		}
	}
	return words
}
