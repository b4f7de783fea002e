package db

// Flag is a boolean as both databases keep it.
func Flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
