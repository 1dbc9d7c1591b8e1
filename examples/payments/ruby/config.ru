# rackup --server puma --port 8080

require_relative 'idempotency'
require_relative 'payments'

use Checked

map '/payments' do
  use Idempotency, CONNECT, lease: LEASE, retention: RETENTION
  run PAY
end

map '/transfers' do
  use Idempotency, CONNECT, retention: RETENTION
  run TRANSFER
end
