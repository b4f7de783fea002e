package db

import (
	"database/sql"
	"fmt"
)

// Collect gives what reads all rows of a query by scan. what begins its errors, such as "list volumes".
func Collect[T any](what string, scan func(interface{ Scan(...any) error }) (T, error)) func(*sql.Rows, error) ([]T, error) {
	return func(rows *sql.Rows, err error) ([]T, error) {
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		defer rows.Close()
		var all []T
		for rows.Next() {
			one, err := scan(rows)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", what, err)
			}
			all = append(all, one)
		}
		return all, rows.Err()
	}
}
