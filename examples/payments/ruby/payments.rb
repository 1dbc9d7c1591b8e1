# A payments service in Ruby: Rack, and pg.
#
#   POST /payments     charges at a provider; a lease holds the key meanwhile
#   POST /transfers    in one transaction

require 'json'
require 'net/http'
require 'pg'
require 'stringio'

TIMEOUT = 30 # seconds that the provider has; the lease must be longer
LEASE = "#{ENV.fetch('LEASE', 60)} s".freeze
RETENTION = ENV['RETENTION'] && "#{ENV['RETENTION']} s"

CONNECT = -> { PG.connect } # where and as whom is in PGHOST, PGDATABASE, PGUSER

def respond(status, answer, headers = {})
  kind = status < 400 ? 'application/json' : 'application/problem+json'
  [status, { 'content-type' => kind, **headers }, [JSON.generate(answer)]]
end

def charge(order, provider_key)
  uri = URI("#{ENV.fetch('PROVIDER')}/charges")
  # Net::HTTP would send it again by itself after a timeout, and the lease would not know.
  http = Net::HTTP.new(uri.host, uri.port)
  http.open_timeout = http.read_timeout = TIMEOUT
  http.max_retries = 0
  headers = { 'content-type' => 'application/json', 'idempotency-key' => provider_key }
  reply = http.post(uri.path, JSON.generate(reference: order['reference'], amount: order['amount']), headers)
  raise IOError, "the provider answered #{reply.code}" if reply.code.to_i >= 500

  [reply.code.to_i, JSON.parse(reply.body)]
end

PAY = lambda do |env|
  call, order = env.values_at('idempotency', 'order')
  begin
    status, answer = charge(order, call.provider_key)
  rescue IOError, SystemCallError, Timeout::Error # perhaps the money moved: the next attempt finds out, with the same key
    next respond(502, { title: 'The payment provider did not answer' })
  end
  next respond(status, answer) if status != 201 # final: kept, and replayed

  number = call.begin.exec_params(
    'INSERT INTO payment (client, reference, amount, charge) VALUES ($1, $2, $3, $4) RETURNING id',
    [env['REMOTE_USER'], order['reference'], order['amount'], answer['charge']]
  ).getvalue(0, 0)
  respond(201, { payment: number.to_i, charge: answer['charge'] }, 'location' => "/payments/#{number}")
end

TRANSFER = lambda do |env|
  order = env['order']
  number = env['idempotency'].begin.exec_params(
    'INSERT INTO transfer (client, reference, amount) VALUES ($1, $2, $3) RETURNING id',
    [env['REMOTE_USER'], order['reference'], order['amount']]
  ).getvalue(0, 0)
  respond(201, { transfer: number.to_i }, 'location' => "/transfers/#{number}")
end

# What is refused here has not begun, and takes no key.
class Checked
  def initialize(app)
    @app = app
  end

  def call(env)
    client = env['HTTP_AUTHORIZATION'].to_s[/\ABearer (.+)\z/, 1]
    return respond(401, { title: 'Who are you?' }) unless client

    body = env['rack.input'].read
    order = parse(body)
    return respond(400, { title: 'A reference and an amount are needed' }) unless order

    @app.call(env.merge('REMOTE_USER' => client, 'order' => order, 'rack.input' => StringIO.new(body)))
  end

  def parse(body)
    order = JSON.parse(body)
    order if order.is_a?(Hash) && order['reference'].is_a?(String) && order['amount'].is_a?(Integer) && order['amount'].positive?
  rescue JSON::ParserError, EncodingError
    nil
  end
end
